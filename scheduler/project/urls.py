"""Where each surface is mounted."""

from django.contrib import admin
from django.urls import include, path

from api.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("api/v1/", include("api.urls")),
    path("admin/", admin.site.urls),
    path("", include("tenants.dashboard.urls")),
]
