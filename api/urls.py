"""The paths below /api/v1/. None ends in a slash."""

from django.urls import path

from api import calendars, documentation, reports, runs, schedules, targets

urlpatterns = [
    path("schedules", schedules.Schedules.as_view(), name="schedules"),
    path("schedules/preview", schedules.DraftPreview.as_view(), name="draft-preview"),
    path("schedules/<uuid:schedule_id>", schedules.OneSchedule.as_view(), name="schedule"),
    path("schedules/<uuid:schedule_id>/pause", schedules.SchedulePause.as_view(), name="schedule-pause"),
    path("schedules/<uuid:schedule_id>/resume", schedules.ScheduleResume.as_view(), name="schedule-resume"),
    path(
        "schedules/<uuid:schedule_id>/trigger", schedules.ScheduleTrigger.as_view(), name="schedule-trigger"
    ),
    path(
        "schedules/<uuid:schedule_id>/preview", schedules.SchedulePreview.as_view(), name="schedule-preview"
    ),
    path(
        "schedules/<uuid:schedule_id>/explain", schedules.ScheduleExplain.as_view(), name="schedule-explain"
    ),
    path(
        "schedules/<uuid:schedule_id>/backfill",
        schedules.ScheduleBackfill.as_view(),
        name="schedule-backfill",
    ),
    path("schedules/<uuid:schedule_id>/runs", runs.ScheduleRuns.as_view(), name="schedule-runs"),
    path("runs", runs.Runs.as_view(), name="runs"),
    path("runs/<uuid:run_id>", runs.Run.as_view(), name="run"),
    path("runs/<uuid:run_id>/cancel", runs.RunCancel.as_view(), name="run-cancel"),
    path("runs/<uuid:run_id>/redrive", runs.RunRedrive.as_view(), name="run-redrive"),
    path("runs/<uuid:run_id>/reconcile", runs.RunReconcile.as_view(), name="run-reconcile"),
    path("runs/<uuid:run_id>/dismiss", runs.RunDismiss.as_view(), name="run-dismiss"),
    path("runs/<uuid:run_id>/heartbeat", reports.RunHeartbeat.as_view(), name="run-heartbeat"),
    path("runs/<uuid:run_id>/complete", reports.RunComplete.as_view(), name="run-complete"),
    path("targets", targets.Targets.as_view(), name="targets"),
    path("targets/<uuid:target_id>", targets.OneTarget.as_view(), name="target"),
    path("targets/<uuid:target_id>/rotate-secret", targets.TargetRotation.as_view(), name="target-rotation"),
    path("calendars", calendars.Calendars.as_view(), name="calendars"),
    path("calendars/<uuid:calendar_id>", calendars.OneCalendar.as_view(), name="calendar"),
    path("schema", documentation.Schema.as_view(), name="schema"),
    path("docs", documentation.Docs.as_view(url_name="schema"), name="docs"),
]
