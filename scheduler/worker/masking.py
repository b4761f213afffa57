"""Secrets out of texts that are stored and shown: errors of jobs, not written for whoever reads them.

A net with meshes, not a wall: what is masked is what looks like a secret, or is one by the environment.
Patterns are bounded, so that a hostile text costs no more than its length.
"""

import os
import re
from typing import Final
from urllib.parse import urlsplit

MASK: Final = "***"
_SHORTEST: Final = 8  # of a value of the environment: shorter ones would take ordinary words with them

_NAMES: Final = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|authorization|signature|cookie|session[_-]?id)"
)
_NAMED = re.compile(
    rf"""({_NAMES}[\w.-]{{0,40}}(?:\\{{0,4}}["'])?\s{{0,9}}(?:=>|[=:])\s{{0,9}})"""  # password =, "token":
    r"""(?:"(?:\\.|[^"\\]){0,4000}"?|'(?:\\.|[^'\\]){0,4000}'?"""  # a quoted value, blanks and all
    r"""|(?:\\{1,4}["'])?(?:(?:bearer|basic|digest|token)\s{1,9})?[^\s,;&"'\\})\]]{1,4000})""",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b([Bb]earer|[Bb]asic)\s{1,9}(?=[^\s\"',;]{0,200}[0-9=A-Z])[\w.~+/=-]{8,4000}")
_URL_PASSWORD = re.compile(r"(://[^\s/:@\"']{0,256}:)[^\s\"'<>]{1,512}@")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,8000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_END_OF_KEY = re.compile(r"\A[\w+/=\s\\]{0,8000}-----END [A-Z ]{0,40}PRIVATE KEY-----")
_WELL_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[opsru]_\w{20,255}|xox[abeoprs]-[\w-]{10,255}|sk[-_][\w-]{16,255}"
    r"|eyJ[\w-]{8,4000}\.[\w-]{8,4000}(?:\.[\w-]{0,4000})?|fp_\w{4,40}_\w{16,255})\b"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)


def masked(text: str) -> str:
    """`text` with `***` for what looks like a secret, or is the value of an environment variable named so."""
    for secret in _secrets_of_environment():
        text = text.replace(secret, MASK)
    for pattern, mask in (
        (_PRIVATE_KEY, MASK),
        (_END_OF_KEY, MASK),
        (_URL_PASSWORD, rf"\1{MASK}@"),
        (_NAMED, rf"\1{MASK}"),
        (_SCHEME, rf"\1 {MASK}"),
        (_WELL_KNOWN, MASK),
    ):
        text = pattern.sub(mask, text)
    return text


def _secrets_of_environment() -> list[str]:
    """The longest first: one may be part of another."""
    found = set()
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name):
            found.add(value)
        elif name.upper().endswith("_URL"):
            found.add(_password_in(value))
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def _password_in(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""
