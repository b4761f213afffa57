"""Settings of Django REST framework and of the schema generator."""

from typing import Any

REST_FRAMEWORK: dict[str, Any] = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}

SPECTACULAR_SETTINGS: dict[str, Any] = {"TITLE": "Fencepost", "VERSION": "1"}
