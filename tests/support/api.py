"""A client of the REST API that waits for no answer longer than a person would."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE_S = 5.0
PROBLEM = "application/problem+json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    content_type: str
    body: Any


@dataclass(frozen=True, kw_only=True)
class Api:
    """Speaks to a running `web`. No answer within the patience is a failure of the test."""

    url: str
    key: str = ""

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Answer:
        return self._ask("POST", path, body or {})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(
                Request(self.url + path, data, headers, method=method), timeout=PATIENCE_S
            ) as response:
                return _read(response.status, response)
        except HTTPError as error:
            with error:
                return _read(error.code, error)


def _read(status: int, response: Any) -> Answer:
    return Answer(
        status=status, content_type=response.headers.get_content_type(), body=json.loads(response.read())
    )
