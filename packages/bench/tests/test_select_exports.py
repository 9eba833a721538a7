"""Exports of a plan: each file is what its library reads, and a rule that a form can't express is named.

Open MPI and MPICH read their files here in `make test-peers`, which installs them. NCCL and UCC need hardware or
packages that are missing, so that their files are compared with the documented format.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench_pair import prepared
from hoplite.errors import InvalidArgument
from hoplite_bench.plan import Contender
from hoplite_bench.select.candidates import settings
from hoplite_bench.select.exports import FORMS, DoesNotFit, environment, export, openmpi
from hoplite_bench.select.exports.fit import MPI_NAMES
from hoplite_bench.select.plan import Plan, Rule
from hoplite_bench.systems.mpi import Mpich, OpenMpi

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.systems.mpi import Mpi

TUNED = "OMPI_MCA_coll_tuned_"


def plan(*rules: Rule, ranks: int = 2, fingerprint: str = "f00d") -> Plan:
    """A plan with these rules; its architecture is that of the operations."""
    arch = "ps" if any(rule.op == "gather" for rule in rules) else "allreduce"
    return Plan(fingerprint, arch, 2**20, ranks, "shell", rules, (), cached=False)


def rule(op: str, below: int | None, system: str, variant: str = "default", **settings: str) -> Rule:
    return Rule(op, below, system, variant, settings, 1e-3)


OPEN_MPI = plan(
    rule("allreduce", 65536, "openmpi"),
    rule("allreduce", None, "openmpi", "ring", OMPI_MCA_coll="^han", OMPI_MCA_coll_tuned_allreduce_algorithm="ring"),
    rule(
        "broadcast", None, "openmpi", "pipeline",
        OMPI_MCA_coll_tuned_bcast_algorithm="pipeline", OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize="49152",
    ),
    rule("allgather", 1024, "openmpi", "x", OMPI_MCA_coll_tuned_allgather_algorithm="2"),
    rule("allgather", None, "openmpi"),
)  # fmt: skip
MPICH = plan(
    rule("allreduce", None, "mpich", "ring", MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM="ring", UCX_TLS="tcp,self"),
    rule(
        "broadcast", None, "mpich", "ring",
        MPIR_CVAR_BCAST_INTRA_ALGORITHM="scatter_ring_allgather",
    ),
    rule("allgather", None, "mpich"),
)  # fmt: skip


def content(plan: Plan, form: str) -> str:
    [file] = export(plan, form).values()
    return file.decode()


def lines(text: str) -> list[str]:
    """The lines without comments, as libraries read them."""
    stripped = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line for line in stripped if line]


def test_the_plan_itself_is_read_back() -> None:
    assert Plan.from_json(json.loads(content(MPICH, "plan"))) == MPICH


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown form 'xml'.*: set one of plan, env, openmpi, mpich, nccl, ucc"):
        export(MPICH, "xml")


def test_rules_of_open_mpi_have_its_numbers() -> None:
    assert lines(content(OPEN_MPI, "openmpi")) == [
        "3",
        # Communicators from 0 ranks on, then those from 2 on.
        *("2", "2", "0", "1", "0 0 0 0", "2", "2", "0 0 0 0", "65536 4 0 0"),
        *("7", "2", "0", "1", "0 0 0 0", "2", "1", "0 3 0 49152"),
        # The sizes of an all-gather are those of the gathered array.
        *("0", "2", "0", "1", "0 0 0 0", "2", "2", "0 2 0 0", "2048 0 0 0"),
    ]


def test_variables_of_mpich_are_only_its_own() -> None:
    assert lines(content(MPICH, "mpich")) == [
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring",
        "MPIR_CVAR_BCAST_INTRA_ALGORITHM=scatter_ring_allgather",
    ]


def test_a_shell_reads_the_environment_file(tmp_path: Path) -> None:
    odd = rule("broadcast", None, "openmpi", "x", OMPI_MCA_coll="^han", NCCL_ALGO="a;b#c,^@d")
    [(name, file)] = export(plan(*MPICH.rules[:1], odd), "env").items()
    (tmp_path / name).write_bytes(file)
    done = subprocess.run(
        ["sh", "-ec", f"set -a; . ./{name}; env -0"],
        env={"PATH": os.environ["PATH"]}, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=10,
    )  # fmt: skip
    found = dict(one.split("=", 1) for one in done.stdout.split("\0") if one)
    wanted = {**MPICH.rules[0].settings, **odd.settings}
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("form", [form for form in FORMS if form != "plan"])
def test_no_text_of_a_plan_leaves_its_comment(form: str) -> None:
    library = form if form in ("openmpi", "mpich", "ucc") else "gloo"
    rules = [rule("allreduce", None, library)]
    if form == "nccl":
        rules = [rule("allreduce", None, "nccl", "tree", NCCL_ALGO="Tree")]
    text = content(plan(*rules, fingerprint="f00d\nPATH=/tmp"), form)
    assert not [line for line in text.splitlines() if line.startswith("PATH")]


@pytest.mark.parametrize("form", ["env", "mpich"])
@pytest.mark.parametrize(
    "settings",
    [
        {"MPIR_CVAR_ALLREDUCE_X; reboot; B": "1"},
        {"MPIR_CVAR_ALLREDUCE_X": "1\nPATH=/tmp"},
        {"1A": ""},
        # What loads code, or reads files.
        {"LD_PRELOAD": "evil.so"},
        {"PYTHONPATH": "x"},
        {"OMPI_MCA_mca_base_component_path": "x"},
        {"OMPI_MCA_coll_tuned_dynamic_rules_filename": "x"},
        {"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": "x"},
        {"NCCL_TUNER_PLUGIN": "x"},
        {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "/tmp/evil.so"},
    ],
)
def test_a_plan_sets_only_variables_that_select_algorithms(form: str, settings: dict[str, str]) -> None:
    foreign = plan(rule("allreduce", None, "mpich", "x", **settings))
    with pytest.raises(DoesNotFit, match="does not select an algorithm or transport of a library: export only"):
        export(foreign, form)


@pytest.mark.parametrize("system", [OpenMpi(), Mpich()], ids=["openmpi", "mpich"])
def test_all_settings_that_select_measures_can_be_exported(system: OpenMpi | Mpich) -> None:
    groups = system.tuned if isinstance(system, OpenMpi) else system.controls
    ops = ("broadcast", "gather", "reduce", "allreduce")
    measured = {
        name: value
        for op, group in itertools.product(ops, groups)
        for name, value in settings(system, op, Contender(system.name, group, group)).items()
    }
    assert len(measured) > len(ops)
    assert [name for name in measured if not environment.VARIABLES.fullmatch(name)] == []
    assert [value for value in measured.values() if not environment.VALUES.fullmatch(value)] == []


@pytest.mark.parametrize("form", ["openmpi", "mpich", "nccl", "ucc"])
def test_rules_of_another_library_are_named(form: str) -> None:
    mixed = plan(
        rule("broadcast", 4096, "torch-gloo"), rule("broadcast", None, "hoplite", "racks"),
        rule("allreduce", None, "torch-gloo"),
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as caught:
        export(mixed, form)
    text = str(caught.value)
    assert "broadcast below 4096 bytes: torch-gloo: another library" in text
    assert "broadcast from 4096 bytes: hoplite (racks): another library" in text
    assert "allreduce: torch-gloo: another library" in text
    step = {"openmpi": "select with --systems openmpi", "mpich": "select with --systems mpich"}
    assert f": {step.get(form, 'export another form, because hoplite select does not measure')}" in text
    with pytest.raises(DoesNotFit, match=r"export it as plan for hoplite_auto$"):
        export(replace(mixed, layer="torch"), form)


@pytest.mark.parametrize(
    ("form", "wrong", "reason"),
    [
        ("openmpi", rule("allreduce", None, "openmpi", "ring"), "no variable selects this variant"),
        ("openmpi", rule("allreduce", None, "openmpi", "x", OMPI_MCA_btl="tcp"), "name no algorithm"),
        ("openmpi", rule("allreduce", None, "openmpi", "x", **{f"{TUNED}allreduce_algorithm": "9"}), "algorithm 9"),
        ("openmpi", rule("allreduce", None, "openmpi", "x", **{f"{TUNED}allreduce_algorithm": "rong"}), "rong"),
        (
            "openmpi",
            rule("allreduce", None, "openmpi", "x", **{f"{TUNED}allreduce_algorithm_max_requests": "2"}),
            "no field for algorithm_max_requests",
        ),
        ("mpich", rule("allreduce", None, "mpich", "ring"), "no variable selects this variant"),
        ("env", rule("allreduce", None, "gloo", "ring chunked"), "no variable selects this variant"),
        ("nccl", rule("allreduce", None, "nccl"), "omit the plug-in"),
        ("nccl", rule("allreduce", None, "nccl", "x", NCCL_ALGO="Star"), "unknown algorithm star"),
        ("nccl", rule("allreduce", None, "nccl", "x", NCCL_P2P_LEVEL="SYS"), "no field for NCCL_P2P_LEVEL"),
        ("ucc", rule("allreduce", None, "ucc", "x", UCC_TL_UCP_TUNE="inf"), "does not name one algorithm"),
        ("ucc", rule("allreduce", None, "ucc", "x", UCC_CLS="hier"), "no token for UCC_CLS"),
    ],
)
def test_settings_that_a_form_lacks_are_named(form: str, wrong: Rule, reason: str) -> None:
    with pytest.raises(DoesNotFit, match=reason):
        export(plan(wrong), form)


@pytest.mark.parametrize("form", ["env", "mpich"])
def test_variables_that_depend_on_the_size_are_refused(form: str) -> None:
    small, large = rule("allreduce", 4096, "mpich"), MPICH.rules[0]
    with pytest.raises(DoesNotFit, match="allreduce below 4096 bytes: mpich and allreduce from 4096 bytes: mpich"):
        export(plan(small, large), form)


def test_settings_with_which_the_own_choice_was_measured_are_exported() -> None:
    own = plan(rule("allreduce", None, "openmpi", OMPI_MCA_mpi_yield_when_idle="1"))
    assert lines(content(own, "env")) == ["OMPI_MCA_mpi_yield_when_idle=1"]
    assert lines(content(own, "openmpi"))[-1] == "0 0 0 0"
    assert "mpirun --bind-to none --mca mpi_yield_when_idle 1 " in content(own, "openmpi")


def test_one_variable_with_two_values_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="need different UCX_TLS"):
        export(plan(MPICH.rules[0], rule("broadcast", None, "mpich", "sm", UCX_TLS="sm,self")), "env")


def test_a_tuner_file_of_nccl_covers_each_byte_once() -> None:
    found = list(
        csv.reader(
            lines(
                content(
                    plan(
                        rule("allreduce", 65536, "nccl", "tree", NCCL_ALGO="Tree", NCCL_PROTO="LL"),
                        rule("allreduce", None, "nccl", "ring", NCCL_ALGO="Ring"),
                        rule("allgather", 512, "nccl", "pat", NCCL_ALGO="PAT"),
                        rule("allgather", None, "nccl", "ring", NCCL_ALGO="Ring", NCCL_PROTO="LL128"),
                        ranks=4,
                    ),
                    "nccl",
                )
            )
        )
    )
    assert found == [
        ["allreduce", "0", "65535", "tree", "ll", "-1", "-1", "4", "-1", "-1"],
        ["allreduce", "65536", "18446744073709551615", "ring", "simple", "-1", "-1", "4", "-1", "-1"],
        ["allgather", "0", "2047", "pat", "simple", "-1", "-1", "4", "-1", "-1"],
        ["allgather", "2048", "18446744073709551615", "ring", "ll128", "-1", "-1", "4", "-1", "-1"],
    ]


def test_a_tuning_string_of_ucc_has_a_token_for_each_range() -> None:
    text = content(
        plan(
            rule("allreduce", 4096, "ucc", "knomial", UCC_TL_UCP_TUNE="@knomial"),
            rule("allreduce", None, "ucc", "sra", UCC_TL_UCP_TUNE="allreduce:@sra_knomial"),
            rule("broadcast", None, "ucc"),
            ranks=3,
        ),
        "ucc",
    )
    assert text.splitlines()[-1] == (
        "UCC_TL_UCP_TUNE='allreduce:0-4096:[3-3]:@knomial#allreduce:4096-inf:[3-3]:@sra_knomial'"
    )
    assert "UCC_TL" not in content(plan(rule("allreduce", None, "ucc")), "ucc")


def programs_of(system: Mpi) -> Path:
    """The folder of a library's programs, or a skip."""
    python = prepared(system).python
    assert python is not None
    return python.parent


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_names_of_algorithms_are_those_of_the_library() -> None:
    done = subprocess.run(
        [programs_of(OpenMpi()) / "ompi_info", "--parsable", "--param", "coll", "tuned", "--level", "9"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    for op, names in openmpi.ALGORITHMS.items():
        name = MPI_NAMES[op]
        found = re.findall(rf"coll_tuned_{name}_algorithm:enumerator:value:(\d+):(\S+)", done.stdout)
        assert [(int(number), one) for number, one in found] == list(enumerate(names))


# Calls each collective with arrays of some sizes; every rank prints whether the library accepted the algorithm.
CALLS = """
import json, sys
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
outcome = {}
for nbytes in json.loads(sys.argv[1]):
    own = np.full(nbytes // 4, world.rank + 1, np.float32)
    total, every = np.empty_like(own), np.empty((world.size, own.size), np.float32)
    calls = {
        "allreduce": lambda: world.Allreduce(own, total),
        "broadcast": lambda: world.Bcast(total),
        "gather": lambda: world.Gather(own, every if world.rank == 0 else None),
        "reduce": lambda: world.Reduce(own, total),
        "allgather": lambda: world.Allgather(own, every),
    }
    for op, call in calls.items():
        try:
            call()
            outcome[f"{op} {nbytes}"] = "ok"
        except MPI.Exception as error:
            outcome[f"{op} {nbytes}"] = MPI.Get_error_string(error.Get_error_class())
# In one write, so that lines of two ranks do not mix.
sys.stdout.write(json.dumps(outcome) + "\\n")
"""


def open_mpi_with(rules: bytes, folder: Path, sizes: list[int], ranks: int) -> list[dict[str, str]]:
    """Runs all collectives with a file of rules; returns the outcomes of each rank."""
    programs = programs_of(OpenMpi())
    (folder / openmpi.NAME).write_bytes(rules)
    command: list[str | Path] = [
        programs / "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        str(ranks),
        "--bind-to",
        "none",
    ]
    settings = {
        "pml": "ob1", "btl": "tcp,self", "mpi_yield_when_idle": "1", "coll": "^han",
        "coll_tuned_use_dynamic_rules": "1", "coll_tuned_dynamic_rules_filename": str(folder / openmpi.NAME),
    }  # fmt: skip
    done = subprocess.run(
        [
            *command, *(part for name, value in settings.items() for part in ("--mca", name, value)),
            programs / "python", "-c", CALLS, json.dumps(sizes),
        ],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == ranks
    return found


# The library checks an algorithm only when a call uses it: a number that is unknown makes exactly the calls of its rule
# fail. So the file is read, and each rule covers the sizes of the plan.
@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_open_mpi_uses_each_exported_rule_for_its_sizes(tmp_path: Path) -> None:
    ranks = 3
    limit = 8192
    # None that calls another collective with a larger array.
    algorithms = {
        "allgather": "ring",
        "allreduce": "ring",
        "broadcast": "chain",
        "gather": "binomial",
        "reduce": "chain",
    }
    rules = [
        rule(op, below, "openmpi", "x", **{f"{TUNED}{MPI_NAMES[op]}_algorithm": algorithm})
        for op, algorithm in algorithms.items()
        for below in (limit, None)
    ]
    whole = export(plan(*rules, ranks=ranks), "openmpi")[openmpi.NAME]
    sizes = [4, limit - 4, limit, 4 * limit]
    assert [set(one.values()) for one in open_mpi_with(whole, tmp_path, sizes, ranks)] == [{"ok"}] * ranks
    large = re.sub(rb"(?m)^([1-9]\d*) \d 0 0$", rb"\1 99 0 0", whole)
    assert large.count(b" 99 ") == len(openmpi.NUMBERS)
    for found in open_mpi_with(large, tmp_path, sizes, ranks):
        wrong = {call for call, outcome in found.items() if "MPI_ERR_ARG" in outcome}
        assert wrong == {call for call in found if int(call.split()[1]) >= limit}


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_open_mpi_leaves_smaller_communicators_to_itself(tmp_path: Path) -> None:
    file = export(plan(rule("allreduce", None, "openmpi"), ranks=3), "openmpi")[openmpi.NAME]
    head, _, last = file.rpartition(b"0 0 0 0")
    broken = head + b"0 99 0 0" + last
    assert "ok" not in {one["allreduce 4"] for one in open_mpi_with(broken, tmp_path, [4], 3)}
    assert {one["allreduce 4"] for one in open_mpi_with(broken, tmp_path, [4], 2)} == {"ok"}


def mpich_with(file: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    programs = programs_of(Mpich())
    (folder / "mpich.env").write_bytes(file)
    script = 'set -a; . ./mpich.env; exec "$0" -n 2 "$@"'
    return subprocess.run(
        ["sh", "-ec", script, programs / "mpiexec.hydra", programs / "python", "-c", CALLS, "[4, 65536]"],
        env={**os.environ, "UCX_TLS": "tcp,self"}, cwd=folder, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_mpich_reads_the_exported_variables(tmp_path: Path) -> None:
    file = export(MPICH, "mpich")["mpich.env"]
    done = mpich_with(file, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [set(json.loads(line).values()) for line in done.stdout.splitlines()] == [{"ok"}] * 2
    # It refuses values that it does not know, so that it did read these.
    for value in (b"ring", b"scatter_ring_allgather"):
        assert file.count(b"=" + value) == 1
        assert mpich_with(file.replace(b"=" + value, b"=rong"), tmp_path).returncode != 0


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_every_variant_of_the_bench_has_variables_that_mpich_knows() -> None:
    programs = programs_of(Mpich())
    known = subprocess.run([programs / "mpivars"], capture_output=True, text=True, check=True, timeout=30).stdout
    for group in Mpich.controls.values():
        for name in group:
            assert re.search(rf"MPIR_CVAR_{name}\b", known), name
