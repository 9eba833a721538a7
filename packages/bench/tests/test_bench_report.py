"""The report of a measurement: which cases are in which list, what figures show, and errors."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from bench_rows import all_kinds, matrix, one_host, row
from hoplite.errors import HopliteError
from hoplite.tools.cli.output import Failure
from hoplite_bench import report, tables, words
from hoplite_bench.cli import bench_report
from hoplite_bench.row import read, to_line
from picture_texts import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row

SVG = "{http://www.w3.org/2000/svg}"
MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
needs_matplotlib = pytest.mark.skipif(not MATPLOTLIB, reason="pictures need Matplotlib")


def page(rows: Sequence[Row]) -> str:
    """The report of rows without pictures."""
    return report.page(tables.collect(rows))


def section(rows: Sequence[Row], title: str) -> str:
    """The text under a heading, up to the next one."""
    _, _, rest = page(rows).partition(f"# {title}\n")
    assert rest, f"the page has no {title}"
    return rest.partition("\n#")[0]


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = matrix(labs={8: "1gbit", 16: "500mbit"})
    assert page([rows[0], *reversed(rows[1:])]) == page(rows)


def test_every_case_is_in_one_of_three_lists() -> None:
    measurement = tables.collect(all_kinds())
    made = report.page(measurement)
    listed = [line for line in made.splitlines() if line.startswith("- ") and "host" in line and "bit/s): " not in line]
    for case in measurement.cases:
        if case.op != "memcpy":
            told = [line for line in listed if f" {case} (" in line or line.startswith(f"- {case} (")]
            assert len(told) == 1, f"{case}: {told}"


def test_slower_and_faster_are_sorted_by_how_much() -> None:
    rows = [
        row(samples=[0.3], bytes=2**10),
        row(system="mpich", samples=[0.1], bytes=2**10),
        row(samples=[0.4], bytes=2**20),
        row(system="mpich", samples=[0.1], bytes=2**20),
        row(samples=[0.1], bytes=2**25),
        row(system="mpich", samples=[0.1], bytes=2**25),
    ]
    slower = section(rows, "Cases in which Hoplite is slower")
    assert slower.index("4.00 × MPICH: broadcast, 8 hosts, 1 MiB") < slower.index("3.00 × MPICH")
    assert "32 MiB" not in slower
    assert "1.00 × MPICH: broadcast, 8 hosts, 32 MiB" in section(rows, "Cases in which Hoplite is as fast")


def test_what_is_within_a_hundredth_is_neither_slower_nor_faster() -> None:
    ratios = {2**10: 0.5, 2**16: 0.993, 2**20: 1.0, 2**25: 1.01, 2**28: 1.02}
    rows = [
        one
        for size, ratio in ratios.items()
        for one in (row(samples=[ratio], bytes=size), row(system="mpich", samples=[1.0], bytes=size))
    ]
    made = page(rows)
    assert (
        "faster than every other system in 1, as fast as the fastest of them (within 1 %) in 3, and slower in 1:"
        in made
    )
    assert "| as fast | 0 | 1 | 1 | 1 | 0 | 3 |" in made
    level = section(rows, "Cases in which Hoplite is as fast")
    assert all(f"8 hosts, {size} (" in level for size in ("64 KiB", "1 MiB", "32 MiB"))
    assert "8 hosts, 256 MiB (" in section(rows, "Cases in which Hoplite is slower")
    assert "| **1.01** MPICH | 1.02 MPICH |" in made


def test_hoplite_counts_by_its_own_choice_and_others_by_their_best() -> None:
    rows = [
        row(samples=[0.2]),
        row(variant="racks configured", samples=[0.1]),
        row(system="openmpi", samples=[0.4]),
        row(system="openmpi", variant="chain", samples=[0.3]),
    ]
    assert "0.667 × Open MPI (chain)" in section(rows, "Cases in which Hoplite is faster")


def test_the_wire_is_nobody_to_be_faster_than() -> None:
    rows = [row(samples=[0.2]), row(system="wire", variant="stream", samples=[0.1], wire_ratio=1.0)]
    assert "no other system has a figure" in section(rows, "Cases without a comparison")


def test_a_cell_whose_repeats_take_ever_longer_is_flagged() -> None:
    slower = [0.010] * 10 + [0.012] * 10
    made = section(
        [row(samples=slower), row(system="mpich", samples=[0.02] * 20)], "Broadcast, 8 hosts (lab, 1 Gbit/s)"
    )
    note = "Hoplite: the second half of 20 repeats is 20% slower than the first"
    assert made.count(note) == 2, "once below the table, once below all variants"
    assert "MPICH: " not in made
    # Too few repeats, or too small a change, is no evidence.
    assert "slower than the first" not in page([row(samples=slower[1:])])
    assert "slower than the first" not in page([row(samples=[0.010] * 10 + [0.0109] * 10)])


def test_the_reason_of_a_system_that_could_not_run_is_below_the_table() -> None:
    rows = [row(), row(system="gloo", samples=[], verified=False, wire_ratio=None, note="no libgloo-dev\nhere")]
    made = section(rows, "Broadcast, 8 hosts (lab, 1 Gbit/s)")
    assert "| Gloo | no figure<sup>1</sup> |" in made
    assert "<sup>1</sup> Gloo: no libgloo-dev here\n" in made


def test_no_cell_of_any_table_is_empty() -> None:
    for line in page(all_kinds()).splitlines():
        if line.startswith("| "):
            assert all(cell.strip() for cell in line.strip("|").split(" | ")[1:]), line


def test_rows_of_different_machines_are_not_compared() -> None:
    other = {"processor": "Other Processor", "cores": 4}
    rows = [row(samples=[0.2]), row(system="mpich", samples=[0.1], machine=other)]
    assert "### Cases in which Hoplite is slower\n\nNone." in page(rows)


def test_racks_make_a_network_of_their_own() -> None:
    flat = {"kind": "lab", "rate": 1_000_000_000, "racks": [8]}
    racks = {"kind": "lab", "rate": 1_000_000_000, "racks": [4, 4], "uplink": "500mbit"}
    made = page([row(lab=flat), row(lab=racks)])
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s)\n" in made
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s, racks of 4 + 4, joined at 500 Mbit/s)\n" in made
    pods = {**racks, "racks": [2, 2, 2, 2], "pods": [2, 2], "pod_uplink": 2_000_000_000}
    made = page([row(lab=racks), row(lab=pods)])
    assert "racks of 2 + 2 + 2 + 2, joined at 500 Mbit/s, in pods of 2 + 2, joined at 2 Gbit/s)\n" in made


def test_a_flow_cap_makes_a_network_of_its_own() -> None:
    plain = {"kind": "lab", "rate": 1_000_000_000}
    made = page([row(lab=plain), row(lab={**plain, "flow_cap": 200_000_000})])
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s)\n" in made
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s, at most 200 Mbit/s per connection)\n" in made
    assert "flow cap 200 Mbit/s" in made


def test_the_limit_is_shown_only_where_bytes_decide() -> None:
    rows = matrix(labs={8: "1gbit"}, ops=("gather",), sizes=(2**16, 2**20))
    assert "| limit: 7.00 × wire | - | 59.0 ms · 7.00× |" in page(rows)
    assert "| limit" not in page(matrix(labs={8: "1gbit"}, ops=("gather",), sizes=(2**16,)))


def test_an_unknown_rate_is_omitted() -> None:
    made = page([row(lab={"kind": "hosts", "names": ["a", "b"], "rate": 0})])
    assert "### Broadcast, 8 hosts (hosts)\n" in made
    assert "bit/s" not in made


def test_only_rows_of_one_host_make_a_page_too() -> None:
    made = page(one_host())
    assert "| put, 64 MiB | Hoplite | 12.0 ms<br>11.0 ms to 13.0 ms, n=3 | 83 | 5.59 | 1.09× |" in made
    assert "| look_up, 0 B | Hoplite | 16.0 µs<br>15.0 µs to 17.0 µs, n=3 | 62,500 | - | - |" in made


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "there are no rows"),
        (
            [row(), row(op="reduce", verified=False)],
            r"1 row can't .*not verified.*: hoplite \(default\) reduce, 8 hosts",
        ),
        (
            [row(), row(bytes=2**10, build="debug")],
            r"not from a release build.*: hoplite \(default\) broadcast.* 1 KiB",
        ),
        ([row(container="bare")], "of a study: pass them to hoplite study report"),
        ([row(), row()], "duplicates; delete the rows of one run"),
        ([row(bytes=4 * at, verified=False) for at in range(12)], "12 rows can't .*; 2 more$"),
    ],
    ids=["none", "unverified", "debug", "of a study", "twice", "many"],
)
def test_what_can_not_be_reported_is_named_and_nothing_is_written(
    tmp_path: Path, rows: Sequence[Row], says: str
) -> None:
    with pytest.raises(tables.Unreportable, match=says):
        report.write(rows, tmp_path / "report", pictures=False)
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (15e-6, "15.0 µs"), (0.9996, "1.00 s"), (123.4, "123 s")],
)
def test_times_have_three_digits_and_a_unit_that_fits(value: float, text: str) -> None:
    assert words.seconds(value) == text


# -- Pictures ----------------------------------------------------------------------------------------------------------


def texts(picture: Picture) -> str:
    """All texts of a figure, which must be well-formed SVG."""
    root = ET.fromstring(picture.svg)
    assert root.tag == f"{SVG}svg"
    return "\n".join("".join(one.itertext()) for one in root.iter(f"{SVG}text"))


def draw(rows: Sequence[Row]) -> list[Picture]:
    """The figures of rows."""
    from hoplite_bench import plots

    return plots.draw(tables.collect(rows))


@needs_matplotlib
def test_there_is_a_picture_of_everything_and_it_shows_every_system() -> None:
    ops = ["rtt", "reduce"]
    rows = [one for one in all_kinds() if one.op in ops and one.bytes != 2**20]
    pictures = {picture.name: picture for picture in draw(rows)}
    shown = {"Hoplite", "MPICH", "Open MPI", "Gloo", "Ray", "Dask"}
    for name in [f"{op}-{against}.svg" for op in ops for against in ("hosts", "sizes")]:
        said = set(texts(pictures.pop(name)).splitlines())
        expected = (shown | {"wire", "limit"}) - ({"Gloo"} if name.startswith("rtt") else set())
        assert expected <= said, f"{name} lacks {expected - said}"
    assert shown | {"limit"} <= set(texts(pictures.pop("wire.svg")).splitlines())
    assert shown | {"call of the last participant"} <= set(
        texts(pictures.pop("arrival-8-hosts-32-MiB.svg")).splitlines()
    )
    assert pictures == {}


@needs_matplotlib
def test_no_picture_of_small_arrays_has_a_limit() -> None:
    small = [texts(picture) for picture in draw(matrix(labs={8: "1gbit"}, ops=("rtt",), sizes=(2**10, 2**16)))]
    assert not any("limit" in said.splitlines() for said in small)
    both = {picture.name: texts(picture) for picture in draw(matrix(labs={8: "1gbit"}, ops=("rtt",)))}
    assert all("limit" in said.splitlines() for said in both.values())


@needs_matplotlib
def test_a_system_without_a_figure_has_no_bar_but_words() -> None:
    rows = [row(), row(system="gloo", samples=[], verified=False, wire_ratio=None, note="why")]
    wire = next(picture for picture in draw(rows) if picture.name == "wire.svg")
    assert "no figure" in texts(wire)


@needs_matplotlib
def test_a_bar_that_is_cut_has_a_gap() -> None:
    rows = [row(wire_ratio=1.0), row(system="mpich", wire_ratio=1.2), row(system="ray", wire_ratio=7.4)]

    def gaps(rows: list[Row]) -> int:
        wire = next(picture for picture in draw(rows) if picture.name == "wire.svg")
        return wire.svg.count("stroke: #ffffff; stroke-width: 1.6")

    assert gaps(rows) == 2
    assert gaps(rows[:2]) == 0


@needs_matplotlib
def test_systems_that_are_as_fast_do_not_cover_each_other() -> None:
    """They are side by side, in the panels of hosts and of sizes."""
    rows = [
        row(hosts=hosts, bytes=size, system=system, samples=[1.0])
        for hosts, size, system in itertools.product((4, 8), (2**20, 2**25), ("hoplite", "mpich"))
    ]
    for picture in draw(rows):
        if picture.name == "wire.svg":
            continue
        places: dict[str, set[tuple[str | None, str | None]]] = {}
        for one in ET.fromstring(picture.svg).iter(f"{SVG}use"):
            for colour in ("#d55e00", "#0072b2"):
                if f"fill: {colour}" in one.get("style", ""):
                    places.setdefault(colour, set()).add((one.get("x"), one.get("y")))
        hoplite, mpich = places.values()
        assert not hoplite & mpich, picture.name
        assert {y for _, y in hoplite} & {y for _, y in mpich}, picture.name


@needs_matplotlib
def test_a_system_without_any_figure_is_named_in_the_panel() -> None:
    rows = [row(), row(system="ray", samples=[], verified=False, wire_ratio=None, note="why")]
    said = {picture.name: texts(picture) for picture in draw([*rows, row(arrival_s=0.1)])}
    assert "no figure: Ray" in said["broadcast-hosts.svg"]
    assert "no figure: Ray" in said["broadcast-sizes.svg"]
    assert "no figure: Ray" in said["arrival-8-hosts-1-MiB.svg"]


def of_several_places() -> list[Row]:
    """An unusual measurement: racks, real hosts, another machine, and a size that was measured only there."""
    racks = {"kind": "lab", "rate": 1_000_000_000, "racks": [4, 4], "uplink": "500mbit"}
    other = {"processor": "Another Processor of a long name @ 2.0 GHz", "cores": 64, "kernel": "6.18.44-fc-v657"}
    cells = itertools.product(("broadcast", "allreduce"), (2**10, 2**20, 2**28), ("hoplite", "mpich", "gloo", "ray"))
    return [
        *matrix(labs={4: "1gbit", 8: "1gbit", 12: "500mbit", 16: "500mbit"}),
        *(row(op=op, bytes=size, system=system, lab=racks) for op, size, system in cells),
        *(row(system=system, bytes=2**30, machine=other) for system in ("hoplite", "mpich")),
        row(
            system="gloo",
            bytes=2**30,
            machine=other,
            samples=[],
            verified=False,
            wire_ratio=None,
            note="does not fit: x",
        ),
    ]


RECORDED = sorted((Path(__file__).parents[3] / "docs" / "benchmarks" / "rows").glob("*.jsonl"))


@needs_matplotlib
# Waits for nothing, but Matplotlib needs seconds of CPU time per figure, more while other tests run.
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda: read(RECORDED), id="docs/benchmarks", marks=pytest.mark.long),
        pytest.param(all_kinds, id="all kinds", marks=pytest.mark.long),
        pytest.param(of_several_places, id="several places"),
    ],
)
def test_texts_of_figures_do_not_overlap_or_leave_the_figure(
    rows: Callable[[], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, told = faults(rows(), monkeypatch)
    assert drawn > 5
    assert told == []


@needs_matplotlib
def test_a_panel_shows_the_hosts_that_its_size_was_measured_with() -> None:
    """Not those of another machine, on which another size was measured."""
    rows = [one for one in of_several_places() if one.op == "broadcast"]
    picture = next(one for one in draw(rows) if one.name == "broadcast-hosts.svg")
    groups = [one for one in ET.fromstring(picture.svg).iter(f"{SVG}g") if one.get("id", "").startswith("axes_")]
    panels = [["".join(one.itertext()) for one in group.iter(f"{SVG}text")] for group in groups]
    hosts = {
        title: [text for text in said if text in {"4", "8", "12", "16"}]
        for said in panels
        for title in said
        if title.startswith("Broadcast, ")
    }
    assert hosts["Broadcast, 1 GiB"] == ["8"]
    assert hosts["Broadcast, 256 MiB"] == ["8"]
    assert hosts["Broadcast, 1 MiB"] == ["4", "8", "8", "12", "16"]
    assert "no figure: Gloo (does not fit)" in panels[-1]


def test_a_machine_is_described_once_and_named_only_if_it_is_not_the_first() -> None:
    rows = of_several_places()
    made = page(rows)
    assert made.count("kernel 6.18.44-fc-v657") == 1
    assert "- Machine A, unless another is named: processor Some Processor" in made
    assert "- Machine B: processor Another Processor of a long name @ 2.0 GHz" in made
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s, machine B)\n" in made
    assert "### Broadcast, 8 hosts (lab, 1 Gbit/s)\n" in made
    assert "machine A" not in made
    assert page([rows[-1], *rows[:-1]]) == made


def test_a_process_that_was_killed_for_its_memory_is_explained() -> None:
    fields: dict[str, Any] = {"samples": [], "verified": False, "wire_ratio": None}
    for note in ("rank 0 has hung up; a process ended with code -9, saying 'nothing'", f"x; {words.ended(-9, '')}"):
        made = page([row(**fields, note=note), row(system="mpich")])
        assert "| Hoplite | killed<sup>1</sup> |" in made
        assert (
            "was killed (signal 9), as the Linux OOM killer does when memory runs out: 8 hosts with arrays of 1 MiB "
            "share 24 GiB" in made
        )
        assert "nothing" not in made
    assert words.ended(3, "out of luck") == "a process exited with status 3; its last line: 'out of luck'"
    late = row(**fields, note="no answer within 30 s from mpich's rank 0")
    assert words.no_figure(late) == "no answer"


@needs_matplotlib
def test_the_same_rows_give_the_same_bytes() -> None:
    rows = matrix(labs={4: "1gbit"}, ops=("broadcast",))
    assert draw(rows) == draw(rows)
    assert not any("<dc:date>" in picture.svg for picture in draw(rows))


@needs_matplotlib
@pytest.mark.parametrize(
    "odd",
    [
        {"samples": [0.0, 0.0], "wire_ratio": 0.0, "bytes": 0},
        {"samples": [], "verified": False, "wire_ratio": None, "note": "none could run"},
        {"op": "sc|atter of_$x$", "lab": {}, "system": "unknown <system> & co"},
    ],
    ids=["no time", "no figure", "unknown"],
)
def test_odd_rows_are_drawn_and_written_too(tmp_path: Path, odd: dict[str, Any]) -> None:
    written = report.write([row(**odd)], tmp_path)
    assert all(path.stat().st_size > 0 for path in written)
    for path in written[1:]:
        ET.fromstring(path.read_text())


def test_without_matplotlib_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HopliteError, match=r"pip install 'matplotlib"):
        report.write([row()], tmp_path / "report")
    assert not (tmp_path / "report").exists()


# -- The command -------------------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> str:
    """The output of the command; a failure is raised."""
    done = CliRunner().invoke(bench_report.report, [str(one) for one in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def lines(path: Path, rows: Sequence[Row]) -> Path:
    """Writes rows to a file."""
    path.write_text("".join(f"{to_line(one)}\n" for one in rows))
    return path


@needs_matplotlib
def test_the_command_writes_one_report_of_several_files(tmp_path: Path) -> None:
    first = lines(tmp_path / "first.jsonl", matrix(labs={4: "1gbit"}, ops=("rtt",)))
    second = lines(tmp_path / "second.jsonl", matrix(labs={16: "500mbit"}, ops=("rtt",)))
    out = tmp_path / "deep" / "report"
    assert command(first, second, "--out", out) == f"{out / 'report.md'}\n"
    made = (out / "report.md").read_text(encoding="utf-8")
    linked = {part.partition(")")[0] for part in made.split("](")[1:]}
    assert linked == {path.name for path in out.glob("*.svg")}
    assert "4 hosts (lab, 1 Gbit/s)" in made
    assert "16 hosts (lab, 500 Mbit/s)" in made


def test_without_pictures_there_is_only_the_page(tmp_path: Path) -> None:
    command(lines(tmp_path / "rows.jsonl", [row()]), "--out", tmp_path / "report", "--no-plots")
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.md"]
    assert ".svg" not in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "says", "step"),
    [
        (b"{}\n", "rows.jsonl:1: the row lacks the fields ", "hoplite bench --out"),
        (b"\xff\xfe", "UTF-8", "hoplite bench --out"),
        (b"", "there are no rows", "hoplite bench --out"),
        (to_line(row(build="debug")).encode(), "not from a release build", "measure the cases again"),
    ],
    ids=["no row", "not text", "empty", "debug"],
)
def test_errors_of_the_command_have_a_next_step(tmp_path: Path, content: bytes, says: str, step: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(Failure, match=says) as failed:
        command(path, "--out", tmp_path / "report")
    assert step in failed.value.step
    assert not (tmp_path / "report").exists()


def test_a_folder_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", [row()])
    with pytest.raises(Failure, match="can't write the report"):
        command(path, "--out", path / "report", "--no-plots")
