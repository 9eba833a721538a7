"""Figures of the published study, copied from its tables, and the defects of that source.

S. Lee, J. Lee: Collective Communication Performance Evaluation for Distributed Deep Learning Training. Appl. Sci. 2024,
14(12), 5100. Four RTX 3080 GPUs in one server, 1 GB per operation, ResNet-18 on CIFAR-10. Its figures 13 to 23 exist as
images only, so no number is from them.
"""

from __future__ import annotations

import dataclasses
import math

SOURCE = (
    "S. Lee and J. Lee, Collective Communication Performance Evaluation for Distributed Deep Learning Training, "
    "Appl. Sci. 2024, 14(12), 5100 (doi:10.3390/app14125100)"
)
WORKERS = 4
NBYTES = 10**9
SAMPLES, BATCH = 50_000, 32


def steps(workers: int) -> int:
    """The number of steps of an epoch."""
    return math.ceil(SAMPLES / BATCH / workers)


STEPS = steps(WORKERS)
# Set-ups of this study, by the names of the published one.
SETUPS = {"bare": "bare metal", "hpc": "Singularity", "single": "single docker", "cross": "cross docker"}
# Systems of this study, by the names of the published one.
LIBRARIES = {
    "mpich": "MPICH",
    "openmpi": "OpenMPI",
    "cuda-mpi": "CUDA-aware MPI",
    "nccl": "NCCL",
    "torch-mpi": "MPI",
    "torch-gloo": "GLOO",
    "torch-nccl": "NCCL",
}


@dataclasses.dataclass(frozen=True)
class Parts:
    """One line of tables 2 to 4, in seconds.

    Attributes:
        collective: the call of the library.
        staging: copies between the memory of a GPU and that of the host; 0 if there are none.
        send: messages between the server and the first worker; 0 if there are none.
        total: the latency.
        suspect: why the line may be an error of the source; empty if nothing suggests it.
    """

    collective: float
    staging: float
    send: float
    total: float
    suspect: str = ""


_TWICE = "equal to the line of the same set-up in table 2"
_NCCL = "the text names 0.892 s"

# Tables 2 to 4: the shell, by operation, set-up and system.
SHELL: dict[str, dict[str, dict[str, Parts]]] = {
    "broadcast": {
        "bare": {
            "mpich": Parts(0.945, 0.653, 0, 1.598),
            "openmpi": Parts(1.235, 0.650, 0, 1.885),
            "cuda-mpi": Parts(1.840, 0, 0, 1.840),
            "nccl": Parts(0.453, 0.171, 0.384, 1.008),
        },
        "hpc": {
            "mpich": Parts(0.439, 0.649, 0, 1.088),
            "openmpi": Parts(0.439, 0.650, 0, 1.089),
            "cuda-mpi": Parts(1.091, 0, 0, 1.091),
            "nccl": Parts(0.438, 0.166, 0.196, 0.800),
        },
        "single": {
            "mpich": Parts(1.262, 0.650, 0, 1.912),
            "openmpi": Parts(1.268, 0.647, 0, 1.915),
            "cuda-mpi": Parts(1.920, 0, 0, 1.920),
            "nccl": Parts(0.420, 0.167, 0.173, 0.760),
        },
        "cross": {
            "mpich": Parts(1.257, 0.658, 0, 1.915),
            "openmpi": Parts(1.277, 0.654, 0, 1.931),
            "cuda-mpi": Parts(1.973, 0, 0, 1.973),
            "nccl": Parts(1.941, 0.167, 0.276, 2.384),
        },
    },
    "gather": {
        "bare": {
            "mpich": Parts(1.806, 0.758, 0, 2.564),
            "openmpi": Parts(1.641, 0.748, 0, 2.389),
            "cuda-mpi": Parts(2.225, 0, 0, 2.225),
            "nccl": Parts(0.446, 1.782, 1.220, 3.448),
        },
        "hpc": {
            "mpich": Parts(1.825, 0.755, 0, 2.580),
            "openmpi": Parts(1.574, 0.749, 0, 2.563, "its parts add up to 2.323 s"),
            "cuda-mpi": Parts(2.565, 0, 0, 2.565),
            "nccl": Parts(0.429, 1.782, 1.236, 3.447),
        },
        "single": {
            "mpich": Parts(1.679, 0.749, 0, 2.428),
            "openmpi": Parts(1.685, 0.746, 0, 2.431),
            "cuda-mpi": Parts(1.920, 0, 0, 1.920, _TWICE),
            "nccl": Parts(0.416, 1.811, 1.286, 3.513),
        },
        "cross": {
            "mpich": Parts(1.664, 0.751, 0, 2.415),
            "openmpi": Parts(1.598, 0.747, 0, 2.345),
            "cuda-mpi": Parts(1.973, 0, 0, 1.973, _TWICE),
            "nccl": Parts(1.925, 1.886, 1.324, 5.135),
        },
    },
    "allreduce": {
        "bare": {
            "mpich": Parts(2.483, 1.394, 0, 3.877),
            "openmpi": Parts(1.903, 1.393, 0, 3.296),
            "cuda-mpi": Parts(3.226, 0, 0, 3.226),
            "nccl": Parts(2.285, 0, 0, 2.285, _NCCL),
        },
        "hpc": {
            "mpich": Parts(1.579, 1.398, 0, 2.977),
            "openmpi": Parts(1.574, 1.381, 0, 2.955),
            "cuda-mpi": Parts(2.952, 0, 0, 2.952),
            "nccl": Parts(2.096, 0, 0, 2.096),
        },
        "single": {
            "mpich": Parts(1.893, 1.417, 0, 3.310),
            "openmpi": Parts(1.870, 1.401, 0, 3.271),
            "cuda-mpi": Parts(3.242, 0, 0, 3.242),
            "nccl": Parts(2.106, 0, 0, 2.106),
        },
        "cross": {
            "mpich": Parts(2.222, 1.378, 0, 3.600),
            "openmpi": Parts(2.396, 1.469, 0, 3.838, "its parts add up to 3.865 s"),
            "cuda-mpi": Parts(3.610, 0, 0, 3.610),
            "nccl": Parts(2.200, 0, 0, 2.200),
        },
    },
}
# Their numbers in the published study.
TABLES = {"broadcast": 2, "gather": 3, "allreduce": 4}


@dataclasses.dataclass(frozen=True)
class Training:
    """One line of table 5 or 6, in seconds of one epoch.

    Attributes:
        steps: number of steps.
        parts: seconds by name of the part.
        total: time of the training; with a parameter server, without computation.
        suspect: why the line may be an error of the source; empty if nothing suggests it.
    """

    steps: int
    parts: dict[str, float]
    total: float
    suspect: str = ""


def _server(steps: int, broadcast: float, gather: float, total: float, suspect: str = "") -> Training:
    return Training(steps, {"broadcast": broadcast, "gather": gather}, total, suspect)


def _allreduce(seconds: float, total: float) -> Training:
    return Training(STEPS, {"collective": seconds}, total)


# Tables 5 (parameter server) and 6 (allreduce), by set-up and system.
TRAINED: dict[str, dict[str, dict[str, Training]]] = {
    "train-ps": {
        "bare": {
            "torch-mpi": _server(391, 213, 880, 1095),
            "torch-gloo": _server(391, 317, 1359, 1676),
            "torch-nccl": _server(521, 12, 491, 503),
        },
        "hpc": {
            "torch-mpi": _server(391, 234, 1058, 1288),
            "torch-gloo": _server(391, 314, 1266, 1580),
            "torch-nccl": _server(521, 10, 356, 367),
        },
        "single": {
            "torch-mpi": _server(391, 234, 1069, 1301),
            "torch-gloo": _server(391, 304, 1301, 1603),
            "torch-nccl": _server(521, 10, 361, 373),
        },
        "cross": {
            "torch-mpi": _server(391, 363, 1084, 1447),
            "torch-gloo": _server(391, 334, 1053, 1386),
            "torch-nccl": _server(521, 14, 695, 833, "its parts add up to 709 s"),
        },
    },
    "train-allreduce": {
        "bare": {
            "torch-mpi": _allreduce(291, 384),
            "torch-gloo": _allreduce(531, 650),
            "torch-nccl": _allreduce(119, 186),
        },
        "hpc": {
            "torch-mpi": _allreduce(282, 374),
            "torch-gloo": _allreduce(505, 623),
            "torch-nccl": _allreduce(96, 162),
        },
        "single": {
            "torch-mpi": _allreduce(284, 378),
            "torch-gloo": _allreduce(488, 607),
            "torch-nccl": _allreduce(94, 164),
        },
        "cross": {
            "torch-mpi": _allreduce(355, 451),
            "torch-gloo": _allreduce(617, 750),
            "torch-nccl": _allreduce(210, 283),
        },
    },
}


@dataclasses.dataclass(frozen=True)
class Extreme:
    """One line of tables 7 to 12.

    Attributes:
        container: the set-up, by its name in this study.
        library: the library, by its name in the published study.
        seconds: the latency.
    """

    container: str
    library: str
    seconds: float


# Tables 7 to 12, in pairs: by group, the numbers of the tables of the best and the worst, and the lines by operation.
EXTREMES: dict[str, tuple[int, int, dict[str, tuple[Extreme, Extreme]]]] = {
    "shell": (
        7,
        8,
        {
            "broadcast": (Extreme("single", "NCCL", 0.76), Extreme("cross", "NCCL", 2.38)),
            "gather": (Extreme("bare", "CUDA-aware", 2.22), Extreme("cross", "NCCL", 5.13)),
            "allreduce": (Extreme("hpc", "NCCL", 2.09), Extreme("bare", "MPICH", 3.87)),
        },
    ),
    "torch": (
        9,
        10,
        {
            "broadcast": (Extreme("hpc", "NCCL", 1.06), Extreme("cross", "MPI", 2.60)),
            "gather": (Extreme("single", "MPI", 3.18), Extreme("cross", "NCCL", 5.45)),
            "allreduce": (Extreme("single", "NCCL", 0.64), Extreme("cross", "MPI", 2.85)),
        },
    ),
    "training": (
        11,
        12,
        {
            "broadcast": (Extreme("hpc", "NCCL", 9.98), Extreme("cross", "MPI", 363.35)),
            "gather": (Extreme("hpc", "NCCL", 356.06), Extreme("cross", "MPI", 1084.23)),
            "allreduce": (Extreme("single", "NCCL", 94.10), Extreme("cross", "GLOO", 617.26)),
        },
    ),
}

# Why some figures of the source can't be compared with.
DEFECTS = (
    (
        "Table 3: the lines of CUDA-aware MPI in single and cross docker (1.920 s and 1.973 s) are those of table 2. "
        "Table 7, whose best gather takes 2.22 s, does not contain them."
    ),
    "Table 3: the parts of OpenMPI in Singularity add up to 2.323 s, but its latency is 2.563 s.",
    (
        "Table 4: NCCL on bare metal takes 2.285 s, in the text 0.892 s. The ratios of the text (78 %, 334 %) are "
        "those of the text's number."
    ),
    "Table 4: the parts of OpenMPI in cross docker add up to 3.865 s, but its latency is 3.838 s.",
    (
        "Table 5: the time of training is broadcast and gather, with a difference of 4 s at most; computation is not "
        "in it, as it is in table 6. Here, too, these two are compared."
    ),
    (
        "Table 5: NCCL in cross docker takes 833 s, but its parts add up to 709 s, and the stated factor of 1.45 "
        "results in 729 s."
    ),
    "Table 5: in the text, training with Gloo takes 0.82 times longer in cross docker; it takes less time.",
    "Table 12: the longest gather is MPI's in cross docker (1084 s); table 5 has 1359 s for Gloo on bare metal.",
    (
        "In the abstract, a gather with Gloo is 36 % faster in single docker than in cross docker; sections "
        "6.1.2 and 7.3 state the opposite. Here, the sections count, because table 5 agrees with them."
    ),
    (
        "In section 5.1.1, the broadcast in Singularity takes up to 75 % less than in single docker; table 2 has "
        "43 % less for MPI."
    ),
    "A latency contains copies between the memory of GPU and host, next to the collective, for some libraries only.",
    "The number of repeats and the spread are not stated, nor whether there was a warm-up.",
)
