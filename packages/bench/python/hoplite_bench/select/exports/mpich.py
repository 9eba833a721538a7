"""A plan as control variables of MPICH, MPIR_CVAR_*. MPICH reads them at MPI_Init and ends if a value is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.select.exports import environment, fit

if TYPE_CHECKING:
    from hoplite_bench.select.plan import Plan

NAME = "mpich.env"
SYSTEMS = ("mpich", "torch-mpi")


def export(plan: Plan) -> dict[str, bytes]:
    """Returns the file of variables.

    Raises:
        DoesNotFit: a rule is of another library, or an operation has several algorithms.
    """
    found = fit.fitting(plan, "variables of MPICH", SYSTEMS, fit.lacks_settings)
    values = {
        name: value for name, value in environment.variables(plan, found).items() if name.startswith("MPIR_CVAR_")
    }
    comments = [
        fit.title(plan, "MPICH"),
        "# Measured with ranks that are not bound to cores, and with MPI_THREAD_MULTIPLE, the default of mpi4py.",
        f"# Set them before MPI_Init: set -a; . ./{NAME}; mpiexec -bind-to none ...",
    ]
    return {NAME: environment.file(comments, found, values)}
