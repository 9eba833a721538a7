"""Checks whether a value has a type, down to each field of a TypedDict."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict


def mismatches(value: Any, wanted: Any, where: str = "") -> list[str]:  # noqa: ANN401 - any value and any type
    """Describes the parts of a value that do not have the type."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if is_typeddict(wanted):
        fields = get_type_hints(wanted)
        if not isinstance(value, dict) or value.keys() != fields.keys():
            return [f"{where} is {value!r}, whose fields are not {sorted(fields)}"]
        return [mismatch for name in fields for mismatch in mismatches(value[name], fields[name], f"{where}.{name}")]
    if origin is list and isinstance(value, list):
        return [mismatch for each in value for mismatch in mismatches(each, arguments[0], f"{where}[]")]
    if origin is dict and isinstance(value, dict):
        return [mismatch for key in value for mismatch in mismatches(value[key], arguments[1], f"{where}.{key}")]
    if origin in (Union, types.UnionType):
        found = [mismatches(value, one, where) for one in arguments if one is not types.NoneType]
        return [] if value is None and types.NoneType in arguments else min(found, key=len)
    if origin is Literal:
        fits = value in arguments
    elif wanted is float:
        fits = type(value) in (int, float)
    else:
        fits = type(value) is wanted
    return [] if fits else [f"{where} is {value!r}, not {wanted}"]
