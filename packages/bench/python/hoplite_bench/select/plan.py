"""The result of a selection: which library runs each operation and size, and what became of every candidate.

Plans are the only format between the search, the cache, the command and the users of a choice. The module does not
depend on how candidates are measured, and imports only the standard library and errors, because a cached plan is read
in milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, get_args, get_type_hints

from hoplite.errors import HopliteError, InvalidArgument

# The operations of an architecture, in the order of a step.
ARCHITECTURES = {"ps": ("broadcast", "gather"), "allreduce": ("allreduce",)}
LAYERS = ("shell", "torch")
STATES = ("chosen", "measured", "dropped", "excluded", "unavailable")


class BadPlan(HopliteError):
    """A text or a JSON value is not a plan; the message names the field."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """The choice for one operation and one range of sizes.

    Attributes:
        op: the operation, such as "broadcast".
        below: the rule applies to arrays of fewer bytes, down to the previous rule's limit; None has no limit.
        system: name of the chosen system, as in `hoplite bench --systems`.
        variant: variant of the system; "default" is its own choice.
        settings: environment variables with which the library was measured, besides those that were already set.
        seconds: predicted time of one operation at the largest size of the range, or at the requested size.
    """

    op: str
    below: int | None
    system: str
    variant: str
    settings: dict[str, str]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The outcome of one candidate for one operation and one size.

    Attributes:
        library: name of the system.
        variant: variant of the system.
        op: the operation.
        nbytes: size of each rank's array in bytes.
        seconds: median, or the model's prediction for a size that was not measured; None if there is neither.
        spread: relative half-width of the 95 % confidence interval of `seconds`; None for a prediction.
        state: "chosen"; "measured" and not chosen; "dropped" from the search because it was clearly slower or the
            budget was spent; "excluded" because it failed, hung, had a wrong result or did not survive a failure;
            "unavailable" because it is not installed or can't run here.
        reason: why it has this state.
    """

    library: str
    variant: str
    op: str
    nbytes: int
    seconds: float | None
    spread: float | None
    state: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Choices for one environment.

    Attributes:
        fingerprint: identifies the environment and the request; plans of another environment are not valid here.
        arch: "ps" (parameter server: broadcast and gather) or "allreduce".
        nbytes: size in bytes for which the plan was requested, of each rank's array.
        ranks: number of ranks.
        layer: "shell" for the libraries themselves, "torch" for backends of torch.distributed.
        rules: for each operation, rules with ascending limits, of which the last has none.
        candidates: the outcome of every candidate for every operation and size.
        cached: whether the plan was read from the cache.
        budget_s: seconds that the measurement was allowed to take.
    """

    fingerprint: str
    arch: str
    nbytes: int
    ranks: int
    layer: str
    rules: tuple[Rule, ...]
    candidates: tuple[Candidate, ...]
    cached: bool
    budget_s: float = 0.0

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise InvalidArgument(f"unknown architecture {self.arch!r}: set one of {', '.join(ARCHITECTURES)}")
        if self.layer not in LAYERS:
            raise InvalidArgument(f"unknown layer {self.layer!r}: set one of {', '.join(LAYERS)}")
        check_size(self.nbytes)
        if self.ranks < 2:
            raise InvalidArgument(f"{self.ranks} rank has no peers: select for at least 2 ranks")
        if lacking := [op for op in ARCHITECTURES[self.arch] if op not in self.ops]:
            raise InvalidArgument(f"the plan has no rule for {', '.join(lacking)}: select again with --refresh")
        for op in self.ops:
            limits = [rule.below for rule in self.rules if rule.op == op]
            numbers = [limit for limit in limits[:-1] if limit is not None]
            if limits[-1] is not None or len(numbers) != len(limits) - 1 or sorted(set(numbers)) != numbers:
                raise InvalidArgument(
                    f"the limits of the rules for {op} are {limits}: they must ascend and end in None"
                )
        if strange := [one.state for one in self.candidates if one.state not in STATES]:
            raise InvalidArgument(f"unknown state {strange[0]!r} of a candidate: set one of {', '.join(STATES)}")

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that have rules, in order."""
        return tuple(dict.fromkeys(rule.op for rule in self.rules))

    @property
    def is_cut(self) -> bool:
        """Whether the end of the budget kept the search from measuring more."""
        return any(
            (one.state == "dropped" and "budget" in one.reason) or (one.seconds is not None and one.spread is None)
            for one in self.candidates
        )

    def rule(self, op: str, nbytes: int) -> Rule:
        """The rule for an operation and a size.

        Args:
            op: an operation of the plan.
            nbytes: size of each rank's array in bytes.

        Raises:
            InvalidArgument: the plan has no rules for this operation.
        """
        for rule in self.rules:
            if rule.op == op and (rule.below is None or nbytes < rule.below):
                return rule
        raise InvalidArgument(f"the plan has no rule for {op!r}, only for {', '.join(self.ops)}")

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object: the contract of `hoplite select --json`."""
        choice = {}
        for op in self.ops:
            best = self.rule(op, self.nbytes)
            rules = [dataclasses.asdict(rule) for rule in self.rules if rule.op == op]
            choice[op] = {"library": best.system, "variant": best.variant, "settings": best.settings, "rules": rules}
        return {
            "fingerprint": self.fingerprint,
            "arch": self.arch,
            "bytes": self.nbytes,
            "ranks": self.ranks,
            "layer": self.layer,
            "choice": choice,
            "candidates": [dataclasses.asdict(one) for one in self.candidates],
            "cached": self.cached,
            "budget_s": self.budget_s,
        }

    @classmethod
    def from_json(cls, value: object) -> Plan:
        """Parses the object that `to_json` returns.

        Raises:
            BadPlan: a field is missing, or has a wrong type or value.
        """
        fields = _object(value, "the plan")
        choice = _object(fields.get("choice"), "choice")
        rules = [
            _record(Rule, one, f"a rule of {op}")
            for op, entry in choice.items()
            for one in _list(_object(entry, f"the choice of {op}").get("rules"), f"the rules of {op}")
        ]
        candidates = [_record(Candidate, one, "a candidate") for one in _list(fields.get("candidates"), "candidates")]
        top = {
            name: _field(fields, key, kind, "the plan")
            for name, key, kind in (
                ("fingerprint", "fingerprint", str),
                ("arch", "arch", str),
                ("nbytes", "bytes", int),
                ("ranks", "ranks", int),
                ("layer", "layer", str),
                ("cached", "cached", bool),
                ("budget_s", "budget_s", float),
            )
        }
        try:
            return cls(**top, rules=tuple(rules), candidates=tuple(candidates))
        except InvalidArgument as error:
            raise BadPlan(f"not a plan: {error}") from None


def check_size(nbytes: int) -> None:
    """Refuses a size that is not that of a float32 array.

    Raises:
        InvalidArgument: the size is below 4 or not a multiple of 4.
    """
    if nbytes < 4 or nbytes % 4:
        raise InvalidArgument(f"{nbytes} bytes are not an array of float32: set a multiple of 4")


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadPlan(f"{what} is not a JSON object but {type(value).__name__}")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadPlan(f"{what} is not a list but {type(value).__name__}")
    return value


def _record(kind: type[Any], value: object, what: str) -> Any:  # noqa: ANN401 - an instance of `kind`
    fields = _object(value, what)
    types = get_type_hints(kind)
    if unknown := sorted(fields.keys() - types.keys()):
        raise BadPlan(f"{what} has unknown fields: {', '.join(unknown)}")
    return kind(**{name: _field(fields, name, one, what) for name, one in types.items()})


def _field(fields: dict[str, Any], name: str, kind: Any, what: str) -> Any:  # noqa: ANN401 - of the given type
    if name not in fields:
        raise BadPlan(f"{what} lacks the field {name}")
    value = fields[name]
    if not any(_fits(value, one) for one in (get_args(kind) if isinstance(kind, types.UnionType) else (kind,))):
        raise BadPlan(f"{name} of {what} is {value!r}, which has a wrong type")
    return value


def _fits(value: object, kind: object) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind == dict[str, str]:
        return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    return isinstance(kind, type) and isinstance(value, kind)
