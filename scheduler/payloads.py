"""What a payload may be: JSON that Postgres can store, of bounded size, that fits its target's parameters.

Payloads are checked when a schedule is saved, so that a run does not fail at night for a misspelt field.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from scheduler.core.reading import did_you_mean, shown
from scheduler.errors import FieldError

MAX_DEPTH: Final = 64
_MAX_ERRORS: Final = 20
# jsonb could hold more; nobody means it. For whole and other numbers alike: 1e300 comes back as a whole one.
_MAX_NUMBER: Final = 10**100

_TYPES: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "string": ("a text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "object": ("an object", (dict,)),
    "array": ("a list", (list,)),
    "null": ("null", (type(None),)),
}


def text_fault(text: str) -> tuple[str, str] | None:
    """(code, detail) when Postgres could not store `text`, else None."""
    if "\x00" in text:
        return "invalid_text", "the NUL character is not allowed."
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "invalid_text", "half of a surrogate pair is not a character."
    return None


def check(payload: Mapping[str, Any], *, max_bytes: int, target: str, parameters: Any) -> list[FieldError]:
    """Everything wrong with `payload`: as JSON first, then its size, then its fit to `target`.

    `parameters` is the target's JSON schema: `properties`, `required`, `additionalProperties`, and in each
    property `type`, `enum`, `anyOf` and `items`; what else stands there is for readers.
    """
    errors = _first(_json_faults("payload", payload))
    if errors:
        return errors
    size = len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())
    if size > max_bytes:
        detail = f"{size:,} bytes are more than the {max_bytes:,} allowed; pass larger data by payload_ref."
        return [FieldError(field="payload", code="too_long", detail=detail)]
    return _first(_misfits("payload", payload, parameters or {}, target))


def faults(field: str, document: Any, *, max_bytes: int) -> list[FieldError]:
    """Everything wrong with any other document, as JSON and in its size."""
    errors = _first(_json_faults(field, document))
    size = 0 if errors else len(json.dumps(document).encode())
    if size > max_bytes:
        detail = f"{size:,} bytes are more than the {max_bytes:,} allowed."
        errors = [FieldError(field=field, code="too_long", detail=detail)]
    return errors


def _first(errors: Iterator[FieldError]) -> list[FieldError]:
    return [error for error, _ in zip(errors, range(_MAX_ERRORS), strict=False)]


def _json_faults(path: str, document: Any) -> Iterator[FieldError]:
    """Walks with a stack of its own: a hostile nesting must not exhaust Python's."""
    stack: list[tuple[str, Any, int]] = [(path, document, 1)]
    while stack:
        place, value, depth = stack.pop()
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            detail = f"nested more than {MAX_DEPTH} levels deep."
            yield FieldError(field=path, code="too_deep", detail=detail)
            return
        fault = _leaf_fault(value)
        if fault is not None:
            yield FieldError(field=place, code=fault[0], detail=fault[1])
        if isinstance(value, dict):
            yield from _name_faults(place, value)
            stack += [(_member(place, name), member, depth + 1) for name, member in value.items()]
        elif isinstance(value, list):
            stack += [(f"{place}.{index}", item, depth + 1) for index, item in enumerate(value)]


def _leaf_fault(value: Any) -> tuple[str, str] | None:
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "invalid_number", "NaN and infinities are not JSON numbers."
    if isinstance(value, int | float) and abs(value) > _MAX_NUMBER:
        return "invalid_number", "the number is too long."
    if not isinstance(value, int | float | dict | list | None):  # from code: a request's JSON has no others
        return "invalid_type", f"expected a JSON value, got {shown(value)}."
    return None


def _name_faults(place: str, members: Mapping[str, Any]) -> Iterator[FieldError]:
    for name in members:
        if not isinstance(name, str):
            detail = f"a member's name: expected a text, got {shown(name)}."
            yield FieldError(field=place, code="invalid_type", detail=detail)
            continue
        fault = text_fault(name)
        if fault is not None:
            yield FieldError(field=place, code=fault[0], detail=f"a member's name: {fault[1]}")


def _member(place: str, name: object) -> str:
    """A dotted path that is safe to print and to store, whatever the member is called."""
    return f"{place}.{str(name)[:40].encode('ascii', 'replace').decode()}"


def _misfits(place: str, value: Any, schema: Mapping[str, Any], target: str) -> Iterator[FieldError]:
    if not _fits(value, schema):
        yield FieldError(field=place, code="invalid_type", detail=f"expected {_wanted(schema)}.")
    elif isinstance(value, dict):
        yield from _misfitting_members(place, value, schema, target)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(value):
            yield from _misfits(f"{place}.{index}", item, schema["items"], target)


def _misfitting_members(
    place: str, value: dict[str, Any], schema: Mapping[str, Any], target: str
) -> Iterator[FieldError]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            detail = f"this field is required by '{target}'."
            yield FieldError(field=f"{place}.{name}", code="required", detail=detail)
    for name, member in value.items():
        if name in properties:
            yield from _misfits(_member(place, name), member, properties[name], target)
        elif schema.get("additionalProperties") is False:
            detail = f"'{target}' takes no such field.{did_you_mean(name, list(properties))}"
            yield FieldError(field=_member(place, name), code="unknown_field", detail=detail)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """`value` itself, without looking into its members."""
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema:
        return any(_fits(value, option) for option in schema["anyOf"])
    names = _type_names(schema)
    return not names or any(_is(value, name) for name in names)


def _is(value: Any, type_name: str) -> bool:
    if isinstance(value, bool):  # Python counts it as an int, JSON does not
        return type_name == "boolean"
    return type_name not in _TYPES or isinstance(value, _TYPES[type_name][1])


def _type_names(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else list(names)


def _wanted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {json.dumps(schema['enum'])}"
    if "anyOf" in schema:
        return " or ".join(_wanted(option) for option in schema["anyOf"])
    return " or ".join(_TYPES[name][0] if name in _TYPES else name for name in _type_names(schema))
