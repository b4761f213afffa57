from django.urls import path

from tenants.dashboard.views import accounts, runs, schedules

app_name = "dashboard"

urlpatterns = [
    path("", schedules.home, name="home"),
    path("login", accounts.sign_in, name="sign_in"),
    path("logout", accounts.sign_out, name="sign_out"),
    path("tenant", accounts.switch_tenant, name="switch_tenant"),
    path("schedules/new", schedules.create, name="create_schedule"),
    path("schedules/preview", schedules.preview, name="preview"),
    path("schedules/<uuid:schedule_id>", schedules.detail, name="schedule"),
    path("schedules/<uuid:schedule_id>/pause", schedules.pause, name="pause"),
    path("schedules/<uuid:schedule_id>/resume", schedules.resume, name="resume"),
    path("schedules/<uuid:schedule_id>/run", schedules.run_now, name="run_now"),
    path("runs", runs.listing, name="runs"),
    path("runs/settle", runs.settle, name="settle_runs"),
    path("runs/<uuid:run_id>", runs.detail, name="run"),
    path("runs/<uuid:run_id>/cancel", runs.cancel, name="cancel_run"),
    path("runs/<uuid:run_id>/redrive", runs.redrive, name="redrive_run"),
    path("runs/<uuid:run_id>/reconcile", runs.reconcile, name="reconcile_run"),
    path("runs/<uuid:run_id>/dismiss", runs.dismiss, name="dismiss_run"),
]
