"""`hoplite bench apps`: its figures, its output, and a small run on a lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from bench_pair import prepared
from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench import apps, apps_cluster
from hoplite_bench.cli import bench_apps
from hoplite_bench.cli.bench import bench
from hoplite_bench.environments import Environments
from hoplite_bench.lab import Lab
from hoplite_bench.systems.ray import Ray
from labs import needs_lab

if TYPE_CHECKING:
    from pathlib import Path

ASYNC = apps.APPS["async"]


def turn(*steps: float, back: int | None = None) -> dict[str, Any]:
    """A turn whose steps took these seconds, as its program returns it."""
    ends, now = [], 0.0
    for step in steps:
        now += step
        ends.append(now)
    return {"ends": ends, "wrong": "", "back": back}


def figures(plain: list[dict[str, Any]], own: list[dict[str, Any]], name: str = "async") -> dict[str, Any]:
    turns = {"plain": plain, "with_hoplite": own}
    return apps.row(apps.APPS[name], turns, count=3, workers=7, hosts=7) | {"app": name}


def test_steps_before_all_are_alike_do_not_count() -> None:
    warm = [50.0] * ASYNC.warm
    row = figures([turn(*warm, 3.0, 5.0), turn(*warm, 4.0, 2.0)], [turn(*warm, 1.0, 1.5), turn(*warm, 2.0, 2.5)])
    assert row["plain"]["seconds"] == pytest.approx([4.0, 3.0])
    assert row["plain"]["median"] == pytest.approx(3.5)
    assert row["with_hoplite"]["steps"] == [pytest.approx([1.0, 1.5]), pytest.approx([2.0, 2.5])]
    assert row["faster"] == pytest.approx(2.0)


def test_the_bound_is_what_passes_the_link_of_the_server() -> None:
    bounds = {name: app.bound(3, 7, 7) for name, app in apps.APPS.items()}
    assert bounds == {"sync": 7, "async": 3, "samples": 3, "gradients": 3, "serving": 7, "one-to-all": 7}
    # Workers of one host share the model; each sends its own gradient.
    assert apps.APPS["sync"].bound(14, 14, 7) == 10.5
    assert apps.APPS["serving"].bound(8, 14, 7) == 7


def test_steps_of_a_failure_are_those_until_the_worker_is_back() -> None:
    warm = [50.0] * ASYNC.warm
    before = [1.0] * apps.STEPS_BEFORE
    seen = ASYNC.warm + apps.STEPS_BEFORE + 2
    row = figures(
        [turn(*warm, *before, 3.0, 5.0, 1.0, 90.0, back=seen)], [turn(*warm, *before, 1.5, 2.5, 1.0, back=None)]
    )
    found = apps.failures(row, "plain")
    assert found == {"before": 1.0, "while_gone": pytest.approx(4.0), "longest": 5.0, "back_s": pytest.approx(8.0)}
    # A worker that was never seen running again counts as gone until the end.
    assert apps.failures(row, "with_hoplite")["back_s"] == pytest.approx(5.0)


def test_models_have_names_and_sizes() -> None:
    assert apps.model_bytes("resnet50") == apps.model_bytes("ResNet50") == 25_557_032 * 4
    assert apps.model_bytes("64MiB") == 2**26
    with pytest.raises(InvalidArgument, match=r"unknown model 'lenet': set one of resnet50, alexnet, vgg16, or a size"):
        apps.model_bytes("lenet")


def test_applications_differ_in_few_lines() -> None:
    assert list(apps.APPS) == list(bench_apps.NAMES)
    for app in apps.APPS.values():
        lines, of = apps.changed(apps.examples() / app.folder)
        assert 0 < lines <= 10, app.folder
        assert of <= 120, app.folder


def test_without_a_checkout_the_error_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "__file__", str(tmp_path / "venv" / "lib" / "hoplite_bench" / "apps.py"))
    with pytest.raises(HopliteError, match="run hoplite-bench from a checkout"):
        apps.examples()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compute", "soon"], "'soon' is not a number of seconds"),
        (["--compute", "-1"], "'-1' is not a number of seconds"),
        (["--fail", "--app", "sync"], "--fail kills a worker, but sync waits for every worker"),
        (["--lab", "2"], "2 is not in the range"),
        (["--app", "chess"], "'chess' is not one of"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(bench, ["apps", *arguments])
    assert done.exit_code == 2
    assert words in done.output.replace('"', "'")


def test_the_table_has_a_line_for_each_application(capsys: pytest.CaptureFixture[str]) -> None:
    row = figures([turn(*[9.0] * ASYNC.warm, 3.0)], [turn(*[9.0] * ASYNC.warm, 1.0)])
    row |= {"bytes": 2**26, "changed": (7, 39)}
    bench_apps._print({"apps": [row], "settings": {"fail": False}})
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "app"
    assert line.split()[:2] == ["async", "64"]
    assert "3.00×" in line
    assert "7 of 39" in line


@needs_lab
@pytest.mark.long
@pytest.mark.parametrize("fail", [False, True], ids=["all run", "a worker is killed"])
def test_applications_run_both_ways_on_hosts_of_a_lab(fail: bool) -> None:
    prepared(Ray())
    names = bench_apps.FAIL if fail else bench_apps.NAMES
    settings = apps.Settings(apps=list(names), model=2**20, turns=1, fail=fail)
    said: list[str] = []
    with Lab(hosts=4) as lab:
        found = apps.measure(lab, Environments(), settings, said.append)
    assert [row["app"] for row in found["apps"]] == list(names)
    assert len(said) == 1 + 2 * len(names)
    for row in found["apps"]:
        assert all(row[way]["median"] > 0 for way in apps_cluster.WAYS)
        if fail:
            assert all(apps.failures(row, way)["longest"] > 0 for way in apps_cluster.WAYS)
