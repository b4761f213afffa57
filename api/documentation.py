"""The OpenAPI schema, and a page to read it on that loads nothing from elsewhere."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import AllowAny
from rest_framework.renderers import TemplateHTMLRenderer


class Schema(SpectacularAPIView):
    """Public: it says nothing that the documentation does not."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = [AllowAny]


class Docs(SpectacularSwaggerSplitView):
    """The split view keeps its script, and our template its style, outside the page: the content security
    policy allows neither within."""

    template_name = "api/docs.html"
    authentication_classes: list[Any] = []
    permission_classes: list[Any] = [AllowAny]
    renderer_classes: list[Any] = [TemplateHTMLRenderer]


class KeyScheme(OpenApiAuthenticationExtension):
    """What the schema says of API keys."""

    target_class = "api.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "fp_<prefix>_<secret>"}


class SessionScheme(OpenApiAuthenticationExtension):
    target_class = "api.authentication.DashboardAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
