"""Settings of Django REST framework and of the schema generator."""

from typing import Any

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "api.authentication.KeyAuthentication",  # first: it decides what a 401 asks for
        "api.authentication.DashboardAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["api.permissions.HasRole"],
    "DEFAULT_PARSER_CLASSES": ["api.parsing.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "api.errors.answer",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Fencepost",
    "DESCRIPTION": (
        "A multi-tenant job scheduler. Times are RFC 3339 in UTC, durations are seconds, and every error is"
        " an RFC 9457 problem document."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "RunState": "scheduler.core.states.State",
        "ScheduleState": "scheduler.models.ScheduleState",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # Shown by the docs page, which may not reach beyond this host.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}
