"""A plan as the CSV file of NCCL's example tuner plug-in (ext-tuner/example, NCCL_TUNER_CONFIG_FILE).

A line has a collective, the first and the last byte, an algorithm, a protocol, and -1 for what the plan does not
restrict. Sizes are those of NCCL: an all-gather counts the gathered array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.select.exports import fit

if TYPE_CHECKING:
    from hoplite_bench.select.plan import Plan, Rule

NAME = "nccl_tuner.conf"
SYSTEMS = ("nccl", "torch-nccl")
COLLECTIVES = ("broadcast", "reduce", "allgather", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
VARIABLES = {"NCCL_ALGO", "NCCL_PROTO"}
# The plug-in parses it as an unsigned number of 64 bits.
LARGEST = 2**64 - 1


def export(plan: Plan) -> dict[str, bytes]:
    """Returns the file. NCCL's own choice has no line; the plug-in prefers a ring with the simple protocol then.

    Raises:
        DoesNotFit: a rule is of another library, or has settings that the file can't express.
    """
    found = fit.fitting(plan, "a tuner file of NCCL", SYSTEMS, _reason)
    lines = [
        fit.title(plan, "NCCL"),
        "# NCCL_TUNER_PLUGIN=example NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf",
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
    ]
    for start, rule in found:
        scale = plan.ranks if rule.op == "allgather" else 1
        last = LARGEST if rule.below is None else rule.below * scale - 1
        algorithm, protocol = _names(rule)
        fields = (rule.op, start * scale, last, algorithm, protocol, -1, -1, plan.ranks, -1, -1)
        lines.append(",".join(map(str, fields)))
    return {NAME: ("\n".join(lines) + "\n").encode()}


def _names(rule: Rule) -> tuple[str, str]:
    return rule.settings.get("NCCL_ALGO", "").lower(), rule.settings.get("NCCL_PROTO", "simple").lower()


def _reason(rule: Rule) -> str:
    """Returns why a rule of NCCL does not fit; empty if it does."""
    if rule.op not in COLLECTIVES:
        return "not a collective of NCCL"
    if unknown := sorted(rule.settings.keys() - VARIABLES):
        return f"the file has no field for {', '.join(unknown)}"
    algorithm, protocol = _names(rule)
    if not algorithm:
        return "a tuner can't leave the choice to NCCL; omit the plug-in instead"
    if algorithm not in ALGORITHMS or protocol not in PROTOCOLS:
        return f"unknown algorithm {algorithm} or protocol {protocol}"
    return ""
