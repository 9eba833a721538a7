"""Applications on plain Ray and on Ray with Hoplite, which alternate on one cluster: their properties and timing.

The applications are in `examples/ray_apps` of a checkout. The server or trainer runs on the first host, the workers on
all others.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sizes import check_size
from hoplite_bench import machine
from hoplite_bench.apps_cluster import WAYS, drivers
from hoplite_bench.steady.figures import wire_seconds
from hoplite_bench.systems.ray import Ray

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_bench.apps_cluster import Driver
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

MIB = 2**20

# Sizes of the papers' models, with 4 bytes per number.
MODELS = {"resnet50": 25_557_032 * 4, "alexnet": 61_100_840 * 4, "vgg16": 138_357_544 * 4}

# Steps of a turn in which a worker is killed: before the kill (after the warm-up steps), and after it.
STEPS_BEFORE = 4
STEPS_AFTER = 12

# Rate of the slow host, as a share of the others' rate.
SLOW_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class App:
    """An application.

    Attributes:
        folder: folder in `examples/ray_apps`.
        title: title in tables.
        nbytes: default size of its model, policy or batch.
        steps: number of steps of a turn that count.
        warm: steps before these, until steps are alike: in the first ones, Hoplite's stores allocate memory.
        bound: maximum speedup by Hoplite, if all links are used and nothing else takes time. Its arguments are the
            number of results that a step needs, of workers, and of their hosts. Plain Ray sends a model from the server
            to each host that needs it, and each gradient to the server. With Hoplite, one of each crosses the server's
            link per step.
    """

    folder: str
    title: str
    nbytes: int
    steps: int
    warm: int
    bound: Callable[[int, int, int], float]


APPS = {
    "sync": App(
        "sync_parameter_server",
        "synchronous parameter server",
        MODELS["resnet50"],
        steps=3,
        warm=2,
        # In sequence: the model to each host, then a gradient of each worker.
        bound=lambda _, workers, hosts: (workers + hosts) / 2,
    ),
    "async": App(
        "async_parameter_server",
        "asynchronous parameter server",
        MODELS["resnet50"],
        steps=9,
        warm=3,
        # Both at the same time, for the workers of one step and of the next.
        bound=lambda count, _, __: count,
    ),
    "samples": App(
        "sample_collection",
        "sample collection, as in IMPALA",
        64 * MIB,
        steps=9,
        warm=3,
        bound=lambda count, _, hosts: min(count, hosts),
    ),
    "gradients": App(
        "gradient_collection",
        "gradient collection, as in A3C",
        64 * MIB,
        steps=9,
        warm=3,
        bound=lambda count, _, __: count,
    ),
    "serving": App(
        "ensemble_serving",
        "ensemble serving",
        48 * MIB,
        steps=6,
        warm=2,
        bound=lambda _, __, hosts: hosts,
    ),
    "one-to-all": App(
        "one_to_all",
        "broadcast of one object",
        256 * MIB,
        steps=2,
        warm=2,
        bound=lambda _, __, hosts: hosts,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        apps: names in `APPS`.
        model: size of each app's model, policy or batch in bytes; None for the app's default.
        per_host: workers on each host except the first.
        compute: minimum compute time of each worker call in seconds; None for the transfer time of the model.
        turns: number of turns of each way.
        slow: whether the last host has a tenth of the rate.
        fail: whether the last worker is killed in each turn.
    """

    apps: list[str]
    model: int | None = None
    per_host: int = 1
    compute: float | None = 0.0
    turns: int = 2
    slow: bool = False
    fail: bool = False


def model_bytes(text: str) -> int:
    """Parses the name of a model or a size.

    Raises:
        InvalidArgument: it is neither.
    """
    if text.lower() in MODELS:
        return MODELS[text.lower()]
    try:
        return check_size("model", text)
    except HopliteError:
        raise InvalidArgument(
            f"unknown model {text!r}: set one of {', '.join(MODELS)}, or a size such as 64MiB"
        ) from None


def examples() -> Path:
    """Returns the folder of the applications.

    Raises:
        HopliteError: this package is not in a checkout.
    """
    folder = Path(__file__).parent.joinpath("../../../../examples/ray_apps").resolve()
    if not folder.is_dir():
        raise HopliteError(f"the applications are missing from {folder}: run hoplite-bench from a checkout of Hoplite")
    return folder


def changed(folder: Path) -> tuple[int, int]:
    """Counts the new or changed lines of with_hoplite.py, and all lines of plain.py, without empty ones."""
    plain, own = ([line for line in (folder / f"{way}.py").read_text().splitlines() if line.strip()] for way in WAYS)
    return sum(line.startswith("+ ") for line in difflib.ndiff(plain, own)), len(plain)


def measure(lab: Lab, environments: Environments, settings: Settings, notify: Callable[[str], None]) -> dict[str, Any]:
    """Measures applications both ways.

    Args:
        lab: the hosts; the server runs on the first, the workers on the others.
        environments: where Ray is installed.
        settings: what to measure.
        notify: called with progress messages.

    Returns:
        "machine", "settings", and "apps" with one entry per application; see `row`.

    Raises:
        HopliteError: an application produced a wrong result, or a program failed; includes its output.
        Unavailable: Ray can't be installed, or can't run here.
    """
    folder = examples()
    python = environments.python(Ray.name, Ray.requirements)
    workers = (len(lab.hosts) - 1) * settings.per_host
    largest = max(settings.model or APPS[name].nbytes for name in settings.apps)
    rate = lab.facts()["rate"]
    # All gradients of a step and a few models at the server.
    memory = (workers + 8) * largest + 128 * MIB
    if settings.slow:
        lab.hosts[-1].slow(rate * SLOW_SHARE)
    rows = []
    notify(f"starting Ray and Hoplite on {len(lab.hosts)} hosts")
    with drivers(lab, python, folder, memory_bytes=memory) as ways:
        for name in settings.apps:
            app = APPS[name]
            nbytes = settings.model or app.nbytes
            wire = wire_seconds(nbytes, rate)
            compute = wire if settings.compute is None else settings.compute
            notify(f"{app.title}: {workers} workers, {nbytes / MIB:.3g} MiB")
            rows.append(_measured(ways, app, settings, nbytes, compute, len(lab.hosts)))
            rows[-1] |= {"app": name, "wire_s": wire, "changed": changed(folder / app.folder)}
            # Reported at once, in case the run is cut short.
            plain, own = (rows[-1][way]["median"] for way in WAYS)
            notify(f"{app.title}: {plain:.2f} s per step on plain Ray, {own:.2f} s with Hoplite")
    told = {**dataclasses.asdict(settings), "hosts": len(lab.hosts), "rate": rate, "flow_cap": lab.facts()["flow_cap"]}
    return {"machine": machine.facts(), "settings": told, "apps": rows}


def _measured(
    ways: dict[str, Driver], app: App, settings: Settings, nbytes: int, compute: float, hosts: int
) -> dict[str, Any]:
    """Runs an application both ways, alternating; see `row`."""
    places = [host for host in range(1, hosts) for _ in range(settings.per_host)]
    count = 0
    for driver in ways.values():
        asked = {"app": app.folder, "places": places, "nbytes": nbytes, "seconds": compute, "restarts": settings.fail}
        count = driver.ask("begin", **asked)["count"]
    turns: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    kill_after = app.warm + STEPS_BEFORE if settings.fail else None
    steps = app.warm + (STEPS_BEFORE + STEPS_AFTER if settings.fail else app.steps)
    for _ in range(settings.turns):
        for way, driver in ways.items():
            turn = driver.ask("turn", steps=steps, kill_after=kill_after)
            if turn["wrong"]:
                raise HopliteError(f"{app.title}, {way}: {turn['wrong']}")
            turns[way].append(turn)
    for driver in ways.values():
        driver.ask("end")
    return row(app, turns, count=count, workers=len(places), hosts=hosts - 1) | {"bytes": nbytes, "compute_s": compute}


def row(app: App, turns: dict[str, list[dict[str, Any]]], *, count: int, workers: int, hosts: int) -> dict[str, Any]:
    """Computes the figures of an application.

    Args:
        app: the application.
        turns: the turns of each way, as returned by `ranks/ray_apps.py`.
        count: number of results that a step needs.
        workers: number of workers.
        hosts: number of hosts with workers.

    Returns:
        For each way: "steps", the seconds of each counted step by turn; "seconds", the mean of each turn; "median", the
        median of the means; "back" of each turn. Also "faster", the speedup by Hoplite, and its "bound".
    """
    found: dict[str, Any] = {"count": count, "workers": workers, "bound": app.bound(count, workers, hosts)}
    for way, several in turns.items():
        steps = [[end - begin for begin, end in itertools.pairwise(turn["ends"][app.warm - 1 :])] for turn in several]
        means = [statistics.mean(each) for each in steps]
        found[way] = {
            "steps": steps,
            "seconds": means,
            "median": statistics.median(means),
            "back": [turn["back"] for turn in several],
        }
    found["faster"] = found["plain"]["median"] / found["with_hoplite"]["median"]
    return found


def failures(row: dict[str, Any], way: str) -> dict[str, float]:
    """Computes the figures of turns in which a worker was killed.

    Args:
        row: figures of an application, from `row`.
        way: one of `WAYS`.

    Returns:
        In seconds: "before", the median of the steps before the kill; "while_gone", the mean of the steps until the
        worker was back, or until the end; "longest", the longest of these; "back_s", their sum, the mean of all turns.
    """
    warm = APPS[row["app"]].warm
    before: list[float] = []
    gone: list[list[float]] = []
    for steps, back in zip(row[way]["steps"], row[way]["back"], strict=True):
        before += steps[:STEPS_BEFORE]
        gone.append(steps[STEPS_BEFORE : None if back is None else back - warm])
    return {
        "before": statistics.median(before),
        "while_gone": statistics.mean(itertools.chain(*gone)),
        "longest": max(itertools.chain(*gone)),
        "back_s": statistics.mean(sum(each) for each in gone),
    }
