"""The findings of the published study, as claims on ratios of two times of an operation. Pure.

Every claim compares one library in two set-ups, or two libraries in one set-up, because absolute times of other
hardware mean nothing. `findings.py` checks the claims against rows.
"""

from __future__ import annotations

import dataclasses
import enum

from hoplite_bench import words
from hoplite_bench.study import matrix, paper

_Line = paper.Parts | paper.Training

# A ratio within this distance of 1 is "about the same".
LEVEL = 0.1
# A ratio must differ from 1 by this much to be "less" or "more".
CLEAR = 0.05


class Expect(enum.Enum):
    """What a claim states about a ratio."""

    LESS = "less"
    LEVEL = "about the same"
    MORE = "more"
    NOT_MORE = "not more"

    def holds(self, ratio: float) -> bool:
        """Whether a ratio is as claimed."""
        match self:
            case Expect.LESS:
                return ratio <= 1 - CLEAR
            case Expect.LEVEL:
                return abs(ratio - 1) <= LEVEL
            case Expect.MORE:
                return ratio >= 1 + CLEAR
            case Expect.NOT_MORE:
                return ratio < 1 + CLEAR


@dataclasses.dataclass(frozen=True)
class Ref:
    """One time: of a system in a set-up, with the most workers."""

    system: str
    container: str

    def __str__(self) -> str:
        return f"{words.name(self.system)} {self.container}"


@dataclasses.dataclass(frozen=True)
class Term:
    """A ratio of two times of one operation.

    Attributes:
        op: the operation.
        top: the numerator.
        bottom: the denominator.
        published: the ratio in the published study; None if it names none.
        suspect: why a figure of that ratio may be an error of the source; empty if nothing suggests it.
    """

    op: str
    top: Ref
    bottom: Ref
    published: float | None = None
    suspect: str = ""

    def __str__(self) -> str:
        return f"{self.top} / {self.bottom}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One finding.

    Attributes:
        text: the finding.
        source: where the published study states it.
        expect: what it states about each ratio.
        terms: the ratios.
    """

    text: str
    source: str
    expect: Expect
    terms: tuple[Term, ...]


def _shell(op: str, system: str, over: str, under: str) -> Term:
    """One system of the shell in two set-ups."""
    table = paper.SHELL[op]
    return _term(op, Ref(system, over), Ref(system, under), table[over][system], table[under][system])


def _shell_pair(op: str, over: str, under: str, container: str) -> Term:
    """Two systems of the shell in one set-up."""
    table = paper.SHELL[op][container]
    return _term(op, Ref(over, container), Ref(under, container), table[over], table[under])


def _trained(op: str, system: str, over: str, under: str) -> Term:
    """One system's training in two set-ups."""
    table = paper.TRAINED[op]
    return _term(op, Ref(system, over), Ref(system, under), table[over][system], table[under][system])


def _trained_pair(op: str, over: str, under: str, container: str) -> Term:
    """Two systems' training in one set-up."""
    table = paper.TRAINED[op][container]
    return _term(op, Ref(over, container), Ref(under, container), table[over], table[under])


def _term(op: str, top: Ref, bottom: Ref, over: _Line, under: _Line) -> Term:
    return Term(op, top, bottom, over.total / under.total, over.suspect or under.suspect)


def _torch(op: str, system: str, over: str, under: str, published: float | None) -> Term:
    return Term(op, Ref(system, over), Ref(system, under), published)


_MPI = ("mpich", "openmpi")
_WITHIN = ("bare", "hpc", "single")

CLAIMS = (
    Claim(
        "A broadcast of NCCL takes up to 213 % longer between containers than in one (shell).",
        "5.1.1, 7.3, table 2",
        Expect.MORE,
        (_shell("broadcast", "nccl", "cross", "single"),),
    ),
    Claim(
        "A broadcast of MPI takes as long between containers as in one (shell).",
        "5.1.1, table 2",
        Expect.LEVEL,
        tuple(_shell("broadcast", system, "cross", "single") for system in _MPI),
    ),
    Claim(
        "A broadcast of MPI is faster in the HPC container than in the other container (shell).",
        "5.1.1, table 2",
        Expect.LESS,
        tuple(_shell("broadcast", system, "hpc", "single") for system in _MPI),
    ),
    Claim(
        "A gather of MPI takes as long between containers as in one (shell).",
        "5.1.2, table 3",
        Expect.LEVEL,
        tuple(_shell("gather", system, "cross", "single") for system in _MPI),
    ),
    Claim(
        "A gather of MPI is faster than one of NCCL, in every set-up (shell).",
        "7.1, table 3",
        Expect.LESS,
        tuple(_shell_pair("gather", "openmpi", "nccl", name) for name in matrix.CONTAINERS),
    ),
    Claim(
        "An allreduce of MPICH takes longer than one of Open MPI on bare metal (shell).",
        "5.2, table 4",
        Expect.MORE,
        (_shell_pair("allreduce", "mpich", "openmpi", "bare"),),
    ),
    Claim(
        "An allreduce of MPI is faster in the HPC container than on bare metal (shell).",
        "5.2, 5.3, table 4",
        Expect.LESS,
        tuple(_shell("allreduce", system, "hpc", "bare") for system in _MPI),
    ),
    Claim(
        "An allreduce of MPI takes longer between containers than in one (shell).",
        "table 4",
        Expect.MORE,
        tuple(_shell("allreduce", system, "cross", "single") for system in _MPI),
    ),
    Claim(
        "An allreduce of NCCL is the fastest, in every set-up (shell).",
        "5.2, 7.1, 7.3, table 4",
        Expect.LESS,
        tuple(_shell_pair("allreduce", "nccl", "openmpi", name) for name in matrix.CONTAINERS),
    ),
    Claim(
        "CUDA-aware MPI is about as fast as MPI with copies (shell).",
        "5.1.1, 7.1, table 2",
        Expect.LEVEL,
        tuple(_shell_pair("broadcast", "cuda-mpi", "openmpi", name) for name in matrix.CONTAINERS),
    ),
    Claim(
        "One container is no slower than bare processes, for any library (shell).",
        "7.1, tables 2 to 4",
        Expect.NOT_MORE,
        tuple(_shell(op, system, "single", "bare") for op in paper.SHELL for system in _MPI),
    ),
    Claim(
        "A gather of Gloo takes 36 % less between containers than in one (PyTorch).",
        "6.1.2, 7.2.1, 7.3; the abstract states the opposite",
        Expect.LESS,
        (_torch("gather", "torch-gloo", "cross", "single", 0.64),),
    ),
    Claim(
        "An allreduce of Gloo takes about as long in all set-ups (PyTorch).",
        "6.2: 2 to 7 %",
        Expect.LEVEL,
        tuple(_torch("allreduce", "torch-gloo", "cross", name, None) for name in _WITHIN),
    ),
    Claim(
        "A broadcast of MPI takes longer between containers than in bare processes (PyTorch).",
        "6.1.1, 7.2.1, table 10",
        Expect.MORE,
        (_torch("broadcast", "torch-mpi", "cross", "bare", None),),
    ),
    Claim(
        "A gather of MPI is faster in one container than in bare processes (PyTorch).",
        "7.2.1: 3.53 s, 3.20 s and 3.18 s",
        Expect.LESS,
        (
            _torch("gather", "torch-mpi", "hpc", "bare", 3.20 / 3.53),
            _torch("gather", "torch-mpi", "single", "bare", 3.18 / 3.53),
        ),
    ),
    Claim(
        "An allreduce of MPI is faster in one container than in bare processes (PyTorch).",
        "7.2.1: 2.8 s, 2.38 s and 2.39 s",
        Expect.LESS,
        (
            _torch("allreduce", "torch-mpi", "hpc", "bare", 2.38 / 2.8),
            _torch("allreduce", "torch-mpi", "single", "bare", 2.39 / 2.8),
        ),
    ),
    Claim(
        "An allreduce of NCCL takes 129 % longer between containers than in bare processes (PyTorch).",
        "6.2",
        Expect.MORE,
        (_torch("allreduce", "torch-nccl", "cross", "bare", 2.29),),
    ),
    Claim(
        "With a parameter server, training with MPI is faster than with Gloo in bare processes and in one container.",
        "6.3, 9, table 5",
        Expect.LESS,
        tuple(_trained_pair("train-ps", "torch-mpi", "torch-gloo", name) for name in _WITHIN),
    ),
    Claim(
        "With a parameter server, training with Gloo is no slower than with MPI between containers.",
        "9, table 5",
        Expect.NOT_MORE,
        (_trained_pair("train-ps", "torch-gloo", "torch-mpi", "cross"),),
    ),
    Claim(
        "With allreduce, training with MPI is faster than with Gloo, in every set-up.",
        "6.3, table 6",
        Expect.LESS,
        tuple(_trained_pair("train-allreduce", "torch-mpi", "torch-gloo", name) for name in matrix.CONTAINERS),
    ),
    Claim(
        "With allreduce, training takes longer between containers than in bare processes.",
        "6.3, table 6",
        Expect.MORE,
        tuple(_trained("train-allreduce", system, "cross", "bare") for system in ("torch-mpi", "torch-gloo")),
    ),
    Claim(
        "With allreduce, training is no slower in one container than in bare processes.",
        "6.3, table 6",
        Expect.NOT_MORE,
        tuple(
            _trained("train-allreduce", system, name, "bare")
            for system in ("torch-mpi", "torch-gloo")
            for name in ("hpc", "single")
        ),
    ),
)
