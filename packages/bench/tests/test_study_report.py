"""The report of a study: its figures, findings, changes of the fastest library, and refused rows."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from hoplite_bench.row import spread
from hoplite_bench.study import claims, findings, matrix, report
from hoplite_bench.study.claims import Claim, Expect, Ref, Term
from hoplite_bench.study.collected import collect
from hoplite_bench.study.findings import Outcome
from hoplite_bench.study.times import confidence, published_time
from hoplite_bench.tables import Unreportable
from picture_texts import faults_of
from study_rows import MACHINE, matrix_rows, study_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.row import Row

MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
needs_matplotlib = pytest.mark.skipif(not MATPLOTLIB, reason="pictures need Matplotlib")


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = matrix_rows(workers=(1, 2))
    assert report.page(collect(rows[::-1])) == report.page(collect(rows))


def test_suspect_figures_are_not_the_published_fastest() -> None:
    # CUDA-aware MPI in one container has a suspect time, the lowest of all; next is MPICH with 2.428 s.
    page = report.page(collect([row for row in matrix_rows() if row.container == "single"]))
    gather = page[page.index("### Gather") : page.index("### Allgather")]
    (line,) = [line for line in gather.splitlines() if "| MPICH |" in line]
    assert line.endswith("| 1.00× |")


def test_every_claim_is_about_known_set_ups_and_operations() -> None:
    for claim in claims.CLAIMS:
        assert claim.terms, claim.text
        for term in claim.terms:
            assert term.op in (*matrix.OPS, *matrix.TRAINING)
            assert {term.top.container, term.bottom.container} <= set(matrix.CONTAINERS)


@pytest.mark.parametrize(
    ("expect", "agrees", "differs"),
    [
        (Expect.LESS, 0.94, 0.96),
        (Expect.LEVEL, 1.09, 1.11),
        (Expect.LEVEL, 0.91, 0.89),
        (Expect.MORE, 1.06, 1.04),
        (Expect.NOT_MORE, 1.04, 1.06),
    ],
)
def test_a_claim_is_checked_by_its_ratio(expect: Expect, agrees: float, differs: float) -> None:
    claim = Claim("of MPICH", "1", expect, (Term("gather", Ref("mpich", "cross"), Ref("mpich", "single")),))
    for ratio, outcome in ((agrees, Outcome.AGREES), (differs, Outcome.DIFFERS)):
        (verdict,) = findings.check(collect(pair("mpich", single=1.0, cross=ratio)), [claim])
        assert verdict.outcome is outcome
        assert verdict.terms[0].ratio == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # At both ends, as many samples are left out as have at most 2.5 % to be beyond the median.
    [(1, 1, 1), (8, 1, 8), (9, 2, 8), (1000, 469, 532)],
)
def test_the_interval_of_a_median_has_the_confidence(count: int, low: int, high: int) -> None:
    assert confidence([float(number) for number in range(count, 0, -1)]) == (low, high)


@pytest.mark.parametrize(
    ("expect", "median", "outcome"),
    [
        (Expect.LESS, 0.9, Outcome.SPREAD),
        (Expect.LESS, 1.1, Outcome.SPREAD),
        (Expect.MORE, 1.1, Outcome.SPREAD),
        (Expect.LEVEL, 1.05, Outcome.AGREES),
        (Expect.LEVEL, 1.15, Outcome.SPREAD),
        (Expect.NOT_MORE, 1.15, Outcome.SPREAD),
        (Expect.NOT_MORE, 0.9, Outcome.AGREES),
    ],
)
def test_a_difference_within_the_spread_is_neither_confirmed_nor_contradicted(
    expect: Expect, median: float, outcome: Outcome
) -> None:
    claim = Claim("of MPICH", "1", expect, (Term("gather", Ref("mpich", "cross"), Ref("mpich", "single")),))
    rows = [
        study_row("mpich", "single", "gather", 4, samples=[0.8, 1.0, 1.0, 1.0, 1.2]),
        study_row("mpich", "cross", "gather", 4, samples=[0.8, median, median, median, 1.2]),
    ]
    (verdict,) = findings.check(collect(rows), [claim])
    assert verdict.outcome is outcome
    # One outlier of ten is not the spread.
    rows = [dataclasses.replace(row, **sampled([*row.samples[1:4] * 3, row.samples[4]])) for row in rows]
    (verdict,) = findings.check(collect(rows), [claim])
    assert verdict.outcome is (Outcome.AGREES if expect.holds(median) else Outcome.DIFFERS)


def test_fewer_than_five_samples_are_no_evidence() -> None:
    claim = Claim("of MPICH", "1", Expect.MORE, (Term("gather", Ref("mpich", "cross"), Ref("mpich", "single")),))
    rows = [dataclasses.replace(row, **sampled(row.samples[:4])) for row in pair("mpich", single=1, cross=2)]
    (verdict,) = findings.check(collect(rows), [claim])
    assert verdict.outcome is Outcome.UNTESTED
    assert verdict.terms[0].ratio == pytest.approx(2)
    assert "Fewer than 5 samples" in verdict.terms[0].reason


def test_ratios_between_set_ups_have_that_of_the_wire_as_control() -> None:
    terms = (
        Term("gather", Ref("mpich", "cross"), Ref("mpich", "single")),
        Term("gather", Ref("mpich", "cross"), Ref("gloo", "cross")),
    )
    rows = [*pair("mpich", single=1, cross=2), *pair("gloo", single=1, cross=2)]
    rows += pair("wire", single=1, cross=1.5)
    (verdict,) = findings.check(collect(rows), [Claim("of MPICH", "1", Expect.MORE, terms)])
    assert [one.wire for one in verdict.terms] == [pytest.approx(1.5), None]


def test_training_with_a_server_is_compared_without_computation() -> None:
    parts = {"train": 6.0, "gather": 3.0, "average": 1.0, "broadcast": 1.0}
    row = study_row("torch-gloo", "bare", "train-ps", 4, samples=[9.5, 10.0, 10.0, 10.0, 10.5], breakdown=parts)
    time = published_time(row)
    assert (time.low, time.middle, time.high) == (3.5, 4.0, 4.5)
    reduced = dataclasses.replace(row, op="train-allreduce")
    assert published_time(reduced).middle == 10


def test_an_epoch_has_as_many_steps_as_workers_need() -> None:
    page = report.page(collect(matrix_rows(workers=(2,))))
    assert "so 782 steps with 2 workers" in page
    assert "391" not in page


def test_a_claim_with_two_ratios_can_hold_in_part_and_without_one_of_them() -> None:
    terms = tuple(Term("gather", Ref(name, "cross"), Ref(name, "single")) for name in ("mpich", "openmpi"))
    claim = Claim("of MPI", "1", Expect.MORE, terms)
    both = [*pair("mpich", single=1, cross=2), *pair("openmpi", single=2, cross=1)]
    assert findings.check(collect(both), [claim])[0].outcome is Outcome.PARTLY
    (verdict,) = findings.check(collect(pair("mpich", single=1, cross=2)), [claim])
    assert verdict.outcome is Outcome.AGREES
    assert verdict.terms[1].reason == "not measured"


def test_a_claim_about_a_system_that_failed_names_its_reason() -> None:
    claim = Claim("of NCCL", "1", Expect.MORE, (Term("gather", Ref("nccl", "cross"), Ref("nccl", "single")),))
    rows = [study_row("nccl", name, "gather", 4, samples=[], note="needs 4 GPUs") for name in ("single", "cross")]
    (verdict,) = findings.check(collect(rows), [claim])
    assert verdict.outcome is Outcome.UNTESTED
    assert verdict.terms[0].reason == "NCCL: needs 4 GPUs"


def test_a_set_up_changes_the_fastest_only_if_both_directions_are_clear() -> None:
    clear = [*pair("mpich", single=1.0, cross=1.2), *pair("gloo", single=1.5, cross=1.0)]
    (change,) = collect(clear).changes()
    assert (change.one.system, change.other.system) == ("mpich", "gloo")
    assert change.ratio == pytest.approx(1.2)
    close = [*pair("mpich", single=1.0, cross=1.04), *pair("gloo", single=1.5, cross=1.0)]
    assert collect(close).changes() == []
    overlapping = [*clear[:-1], dataclasses.replace(clear[-1], **sampled([0.9, 1.0, 1.0, 1.0, 1.3]))]
    assert collect(overlapping).changes() == []
    few = [dataclasses.replace(row, **sampled(row.samples[:4])) for row in clear]
    assert collect(few).changes() == []
    assert "Not tested: in no operation" in report.page(collect(few))


def test_variants_of_one_library_are_not_two_libraries() -> None:
    own: dict[str, Any] = {"variant": "own memory"}
    rows = [*pair("hoplite", single=1.0, cross=1.2), *pair("hoplite", single=1.5, cross=1.0, **own)]
    assert collect(rows).changes() == []


def test_the_fastest_library_is_named_with_those_that_may_be_as_fast() -> None:
    rows = [*pair("mpich", single=1.0, cross=2.0), *pair("gloo", single=1.1, cross=2.2)]
    rows += [study_row("openmpi", "cross", "gather", 4, samples=[1.9, 2.0, 2.1, 2.2, 2.3])]
    page = report.page(collect(rows))
    assert "| gather, 4 workers (shell) | MPICH 1.00 s | MPICH 2.00 s<br>or Open MPI |" in page


def test_hoplite_competes_with_copies_only() -> None:
    copies: dict[str, Any] = {"variant": "own memory"}
    views = [*pair("mpich", single=1.0, cross=1.2), *pair("hoplite", single=1.5, cross=1.0)]
    page = report.page(collect(views))
    assert "Not tested: in no operation" in page, "without rows of own memory, there is no other library"
    assert "In single, cross, some cells have Hoplite (views) only" in page
    both = [*views, *pair("hoplite", single=1.6, cross=1.1, **copies)]
    (change,) = collect(both).changes()
    assert change.other.variant == "own memory"
    assert "Hoplite (views) only" not in report.page(collect(both))


def test_arrays_in_memory_of_a_gpu_are_not_compared_with_others() -> None:
    rows = [*matrix_rows(), *gpu_rows()]
    study = collect(rows)
    assert {row.variant for row in study.competing("bare", "gather", "torch")} == {"cuda"}
    page = report.page(study)
    assert "Through PyTorch, with tensors in memory of a GPU:" in page
    assert "| bare processes | torch Gloo (cuda) | 90.0 ms (90 %) | 10.0 ms (10 %) | - |" in page
    assert "of which staging copies" in page
    report.page(collect(gpu_rows()))


def test_a_set_up_that_is_missing_has_its_reason_and_the_rest_is_compared() -> None:
    page = report.page(collect(matrix_rows(without="cross")))
    assert "- MPICH, broadcast, gather, allgather, allreduce in cross (14 cells): the container set-up needs" in page
    assert "- allgather, allreduce in bare, hpc, single, cross" in page
    assert "| A broadcast of MPI takes as long between containers as in one (shell). " in page
    assert "MPICH: the container set-up needs the command runc" in page


def test_a_study_of_the_shell_alone_has_no_training() -> None:
    page = report.page(collect([row for row in matrix_rows() if row.layer == "shell" and "train" not in row.op]))
    assert "## Training" not in page
    assert "## Breakdown of a collective" in page


@needs_matplotlib
# Waits for nothing, but Matplotlib needs seconds of CPU time per figure, more while other tests run.
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="all", marks=pytest.mark.long),
        pytest.param({"workers": (2,), "without": "hpc"}, id="without a set-up"),
    ],
)
def test_texts_of_figures_do_not_overlap(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from hoplite_bench.study import pictures

    assert faults_of(lambda: pictures.draw(collect(matrix_rows(**given))), monkeypatch) == (11, [])


@needs_matplotlib
def test_the_report_and_its_figures_are_written_again_with_the_same_bytes(tmp_path: Path) -> None:
    rows = [row for row in matrix_rows(workers=(1, 2)) if row.op in ("broadcast", "train-ps")]
    written = [report.write(rows, tmp_path / name) for name in ("one", "two")]
    assert [path.name for path in written[0]][:2] == ["report.md", "study-shell-broadcast.svg"]
    for one, two in zip(*written, strict=True):
        assert one.read_bytes() == two.read_bytes()
    page = written[0][0].read_text()
    for path in written[0][1:]:
        assert f"]({path.name})" in page


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"container": ""}, "no rows of a study"),
        ({"container": "podman"}, r"1 row can't be reported \(of an unknown container set-up\)"),
        ({"build": "debug"}, "not from a release build"),
        ({"verified": False}, "not verified"),
        ({"machine": MACHINE | {"cores": 64}}, "from 2 machines, whose times differ: report one only: .*cores 64"),
        ({"bytes": 1 << 20, "op": "gather"}, r"of 2 sizes \(64 MiB, 1 MiB\): report one size only"),
        ({}, "duplicates"),
    ],
)
def test_misleading_rows_are_refused(fields: dict[str, Any], message: str) -> None:
    good = study_row("mpich", "bare", "broadcast", 4)
    bad = dataclasses.replace(good, **fields)
    rows = [good, bad] if bad.container == "bare" else [bad]
    with pytest.raises(Unreportable, match=message):
        collect(rows)


def pair(system: str, *, single: float, cross: float, **fields: Any) -> Sequence[Row]:  # noqa: ANN401
    """Rows of a gather of 4 workers in two set-ups, with these medians."""
    return [
        study_row(system, name, "gather", 4, samples=[median] * 5, **fields)
        for name, median in (("single", single), ("cross", cross))
    ]


def sampled(samples: list[float]) -> dict[str, Any]:
    """The fields of a row that depend on its samples."""
    return {"samples": samples, "seconds": spread(samples)}


def gpu_rows() -> list[Row]:
    """Rows of tensors in memory of a GPU, of which copies are a part."""
    gpu: dict[str, Any] = {"variant": "cuda", "samples": [0.1] * 10}
    parts = {"collective": 0.09, "staging": 0.01}
    step = {"train": 0.02, "gather": 0.05, "average": 0.01, "broadcast": 0.03, "staging": 0.01}
    return [
        study_row("torch-gloo", "bare", op, 4, breakdown=step if op == "train-ps" else parts, **gpu)
        for op in (*matrix.OPS, "train-ps")
    ]
