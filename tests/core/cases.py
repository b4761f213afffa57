"""The cases with known answers, as data."""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "cases"
UPSTREAM = Path(os.environ.get("FENCEPOST_CASES") or FOLDER.parent.parent.parent / "shared" / "cases")


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def instants(texts: list[str]) -> list[datetime]:
    return [instant(text) for text in texts]


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
