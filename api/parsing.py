"""Bodies: JSON as RFC 8259 has it, an object, of bounded size, without a name given twice."""

import json
from collections.abc import Mapping
from typing import IO, Any, Final

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from api.errors import Problem

MAX_BODY_BYTES: Final = 1024 * 1024


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        request = (parser_context or {})["request"]
        _check_size(int(request.META.get("CONTENT_LENGTH") or 0))
        body = stream.read(MAX_BODY_BYTES + 1)
        _check_size(len(body))  # what arrived, whatever the header said
        return parse_object(body)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise Problem(413, f"A body may have {MAX_BODY_BYTES:,} bytes.")


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises ParseError for everything that is not one JSON object in UTF-8."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=_members, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ParseError("The body is not UTF-8.") from None
    except RecursionError:
        raise ParseError("The body is nested too deeply.") from None
    except ValueError as error:
        raise ParseError(f"The body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ParseError("The body must be a JSON object.")
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ParseError(f"{json.dumps(repeated[:40])} is given twice in one object.")
    return members


def _refuse_constant(text: str) -> Any:
    raise ParseError(f"{text} is not JSON.")
