"""The jobs this process knows, with what their decorators say."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A registered job. `retry` is named as in a revision; `parameters` is the payload's JSON schema."""

    name: str
    function: Function
    retry: Mapping[str, Any] | None
    timeout_s: int | None
    side_effects: str
    parameters: Mapping[str, Any]
    description: str
    kind: str = "job"  # the target's
    non_retryable: tuple[type[BaseException], ...] = ()
    drains: bool = False
    cancel_grace_s: int | None = None
    heartbeat_timeout_s: int | None = None
    reconcile: Function | None = None  # asked how a run of unknown outcome ended


_jobs: dict[str, JobSpec] = {}


def register(spec: JobSpec) -> None:
    """The same function may be imported twice; two functions may not share a name."""
    known = _jobs.get(spec.name)
    if known is not None and known.function.__qualname__ != spec.function.__qualname__:
        raise ValueError(
            f"job {spec.name!r} is {known.function.__module__}.{known.function.__qualname__} already; "
            f"{spec.function.__module__}.{spec.function.__qualname__} needs another name"
        )
    _jobs[spec.name] = spec


def jobs() -> Mapping[str, JobSpec]:
    return MappingProxyType(_jobs)


_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
    type(None): "null",
}


def payload_schema(function: Function, *, context: bool = True) -> dict[str, Any]:
    """JSON schema of the payload that fits `function(ctx, **payload)`, or `function(**payload)`.

    What a parameter's annotation does not say in JSON's words is left open rather than guessed.
    Raises TypeError for a signature that no JSON object can fill.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if context:
        _refuse_missing_context(parameters, function)
        del parameters[0]
    hints = get_type_hints(function)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    for parameter in parameters:
        _add(schema, parameter, hints.get(parameter.name, Any), function)
    return schema


def _refuse_missing_context(parameters: list[inspect.Parameter], function: Function) -> None:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"{function.__qualname__}: the first parameter of a job is its context")


def _add(schema: dict[str, Any], parameter: inspect.Parameter, hint: Any, function: Function) -> None:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        schema["additionalProperties"] = True
    elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
        raise TypeError(f"{function.__qualname__}: a payload has names, so {parameter} cannot be filled")
    else:
        schema["properties"][parameter.name] = _type_schema(hint)
        if parameter.default is inspect.Parameter.empty:
            schema["required"].append(parameter.name)


def _type_schema(hint: Any) -> dict[str, Any]:
    members = get_args(hint) if _is_union(hint) else (hint,)
    names = [_JSON_TYPES.get(get_origin(member) or member) for member in members]
    if not all(names):
        return {}
    return {"type": names[0] if len(names) == 1 else names}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)
