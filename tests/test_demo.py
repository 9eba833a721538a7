"""The complete demo on real data, as `make demo` runs it, without the display."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite.tools.demo import network, run
from hoplite.tools.demo.display import Progress, draw


# After 50 steps, the accuracy of one run in many is still below the limit.
@pytest.mark.parametrize("steps", [100, pytest.param(run.STEPS, marks=[pytest.mark.long, pytest.mark.timeout(120)])])
def test_the_demo_trains_relays_and_reduces(steps: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hoplite.tools.cli", "demo", "--json", "--steps", str(steps)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert set(facts) == {
        "accuracy",
        "steps",
        "seconds",
        "bytes_direct",
        "bytes_relayed",
        "bytes_folded_remote",
        "contributions",
        "disturbances",
    }
    assert facts["accuracy"] > run.ACCURACY_MIN
    assert facts["steps"] == steps
    assert facts["disturbances"] == []
    assert facts["seconds"] < 60 or steps < run.STEPS
    assert facts["bytes_relayed"] > 0
    assert facts["bytes_folded_remote"] > 0
    contributions = facts["contributions"]
    assert len(contributions) == run.WORKERS
    assert sum(contributions) == steps * run.COUNT
    # Every worker contributed, including the slow, the late and the leaving one, unless the run is short.
    assert min(contributions) > 0 or steps < run.STEPS


def test_a_run_without_relays_or_remote_folds_fails() -> None:
    good = run.Outcome(0.97, 160, 20.0, 1, 1, 1, 0, [100] * 8, [])
    assert good.complaints() == []
    assert "unexpected restarts, failures and rejections: none" in run.summary(good)
    disturbed = dataclasses.replace(good, disturbances=["node 1 counted refusals +1"])
    assert "rejections: node 1 counted refusals +1" in run.summary(disturbed)
    for bad in (
        dataclasses.replace(good, accuracy=0.95),
        dataclasses.replace(good, bytes_relayed=0),
        dataclasses.replace(good, bytes_folded_remote=0),
    ):
        assert len(bad.complaints()) == 1


def test_the_parameters_are_at_least_4_mib() -> None:
    assert network.initial(0).nbytes >= 4 << 20
    assert network.initial(0).dtype == np.float32


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """Compared with finite differences in float64, for weights and biases of each layer."""
    random = np.random.default_rng(0)
    flat: Any = network.initial(1).astype(np.float64)
    images: Any = random.random((16, 64))
    labels = random.integers(0, 10, 16)

    def loss(parameters: Any) -> float:  # noqa: ANN401 - float64, where the demo has float32
        values = images
        *hidden, (weights, biases) = network.layers(parameters)
        for hidden_weights, hidden_biases in hidden:
            values = np.maximum(values @ hidden_weights + hidden_biases, 0)
        logits = values @ weights + biases
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return float(-np.log(shares[np.arange(16), labels]).mean())

    gradient = network.gradient(flat, images, labels)
    places = [*random.integers(0, len(flat), 10).tolist(), 64 * 1024 + 5, len(flat) - 3, len(flat) - 100]
    for place in places:
        step = np.zeros_like(flat)
        step[place] = 1e-5
        slope = (loss(flat + step) - loss(flat - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, abs=1e-7)


def test_the_display_shows_who_contributed() -> None:
    from rich.console import Console

    progress = Progress(steps=10, count=5, nodes=4, workers=8, step=3, accuracy=0.5)
    progress.contributions[2] = 3
    progress.last = {2}
    progress.running = {2}
    progress.traits[2] = "slow"
    progress.counters = [
        {"bytes_direct": 2048, "bytes_relayed": 0, "bytes_folded_remote": 0, "bytes_folded_local": 0} for _ in range(4)
    ]
    text = io.StringIO()
    Console(width=120, file=text).print(draw(progress))
    for word in ("step 3/10", "50.0%", "yes", "slow", "not started", "2.0 KiB", "trainer"):
        assert word in text.getvalue()


def later() -> Progress:
    """Progress with the widest possible values."""
    progress = Progress(steps=160, count=5, nodes=4, workers=8, step=160, accuracy=0.975)
    progress.contributions[:] = [100] * 8
    progress.contributions[6] = 0
    progress.traits[6] = "leaves halfway"
    progress.step = 159
    progress.counters = [
        {"bytes_direct": 10**9, "bytes_relayed": 10**9, "bytes_folded_remote": 10**9, "bytes_folded_local": 10**9}
    ] * 4
    return progress


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_display_is_never_truncated(width: int) -> None:
    from rich.console import Console

    text = io.StringIO()
    Console(width=width, file=text).print(draw(later(), width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.getvalue()
    assert "leaves halfway, not started" in text.getvalue()
    assert sum(line.split()[:1] == ["worker"] for line in lines) == 1
    # One row each: two headers, a blank line, eight workers and four nodes, below a summary of one or two lines.
    assert len(lines) in {16, 17}


def test_the_display_is_drawn_once_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """The text is complete regardless of the environment's width, and ends with a newline."""
    source = """
from hoplite.tools.demo.display import Display
from test_demo import later
progress = later()
with Display(progress, show=True) as display:
    display.update()
    display.update()
"""
    environment = {**os.environ, "COLUMNS": "20", "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", source], env=environment, timeout=60, check=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("gradients used") == 1
    assert "…" not in captured.err
    assert captured.err.endswith("\n")
    assert not captured.err.endswith("\n\n")
