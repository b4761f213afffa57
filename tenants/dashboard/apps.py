from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "tenants.dashboard"
    label = "dashboard"
