"""A plan as a file of rules for the component "tuned" of Open MPI.

The file has numbers: for each collective the numbers of ranks, for each of these the sizes, and for each size an
algorithm, a fan-out and a segment. Open MPI ignores a file that it can't read, without a message. So a test with the
real library checks each number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.select.exports import fit

if TYPE_CHECKING:
    from hoplite_bench.select.plan import Plan, Rule

NAME = "openmpi-rules.conf"
PREFIX = "OMPI_MCA_coll_tuned_"

# Open MPI's numbers of collectives.
NUMBERS = {"allgather": 0, "allreduce": 2, "broadcast": 7, "gather": 9, "reduce": 11}

# Names of algorithms in the order of their numbers, as `ompi_info --param coll tuned --level 9` lists them. Number 0 is
# Open MPI's own choice.
ALGORITHMS = {
    "allgather": (
        "ignore", "linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc", "sparbit",
    ),
    "allreduce": (
        "ignore", "basic_linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring", "rabenseifner",
    ),
    "broadcast": (
        "ignore", "basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial",
        "scatter_allgather", "scatter_allgather_ring",
    ),
    "gather": ("ignore", "basic_linear", "binomial", "linear_sync"),
    "reduce": (
        "ignore", "linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner",
    ),
}  # fmt: skip

# Open MPI looks up these by the bytes of all ranks together; the others by those of one.
OF_ALL_RANKS = ("allgather", "gather")

SUFFIXES = ("algorithm", "algorithm_segmentsize", "algorithm_tree_fanout", "algorithm_chain_fanout")


def export(plan: Plan) -> dict[str, bytes]:
    """Returns the file of rules.

    Raises:
        DoesNotFit: a rule is of another library, or has settings that such a file can't express.
    """
    found = fit.fitting(plan, "rules of Open MPI", ("openmpi",), _reason)
    lines = [
        fit.title(plan, "Open MPI"),
        "# Without the component han; Open MPI's own choice is that of the component tuned.",
        "# Larger communicators use the same rules, smaller ones Open MPI's own.",
        "# Measured with ranks that yield while they wait, and that are not bound to cores.",
        "# mpirun --bind-to none --mca mpi_yield_when_idle 1 --mca coll ^han --mca coll_tuned_use_dynamic_rules 1 \\",
        f"#     --mca coll_tuned_dynamic_rules_filename $PWD/{NAME} ...",
        f"{len(plan.ops)} # collectives",
    ]
    for op in plan.ops:
        of_op = [one for one in found if one.rule.op == op]
        # The first entry is for smaller communicators, which would use that of the plan otherwise.
        lines += [f"{NUMBERS[op]} # {op}", "2 # numbers of ranks", "0", "1 # size", "0 0 0 0"]
        lines += [f"{plan.ranks}", f"{len(of_op)} # sizes"]
        lines += ["# first byte, algorithm, fan-out, segment in bytes"]
        scale = plan.ranks if op in OF_ALL_RANKS else 1
        for start, rule in of_op:
            lines.append(" ".join(map(str, (start * scale, *_parameters(rule)))))
    return {NAME: ("\n".join(lines) + "\n").encode()}


def _parameters(rule: Rule) -> tuple[int, int, int]:
    """Returns the number of the algorithm, the fan-out and the segment size of a rule."""
    values = _values(rule)
    name = values.get("algorithm", "ignore")
    number = int(name) if name.isdigit() else ALGORITHMS[rule.op].index(name)
    fanout = values.get("algorithm_tree_fanout") or values.get("algorithm_chain_fanout") or "0"
    return number, int(fanout), int(values.get("algorithm_segmentsize", "0"))


def _values(rule: Rule) -> dict[str, str]:
    start = f"{PREFIX}{fit.MPI_NAMES[rule.op]}_"
    return {name.removeprefix(start): value for name, value in rule.settings.items() if name.startswith(start)}


def _reason(rule: Rule) -> str:
    """Returns why a rule of Open MPI does not fit; empty if it does."""
    if rule.op not in NUMBERS:
        return "not a collective of Open MPI"
    if why := fit.lacks_settings(rule):
        return why
    values = _values(rule)
    if unknown := sorted(values.keys() - set(SUFFIXES)):
        return f"rules have no field for {', '.join(unknown)}"
    if rule.variant != "default" and "algorithm" not in values:
        return "its settings name no algorithm of the component tuned"
    name = values.get("algorithm", "ignore")
    known = ALGORITHMS[rule.op]
    if not (int(name) < len(known) if name.isdigit() else name in known):
        return f"unknown algorithm {name}"
    numbers = [value for suffix, value in values.items() if suffix != "algorithm"]
    return "" if all(value.isdigit() for value in numbers) else "a segment or a fan-out is not a number"
