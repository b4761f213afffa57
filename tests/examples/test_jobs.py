"""Each example job, run as a team would test its own: by its function, with a context that nobody holds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from django.conf import settings as django_settings
from django.contrib.sessions.models import Session
from pytest_django import Settings

from examples import jobs
from scheduler.errors import Cancelled, PermanentError
from scheduler.testing import LocalContext
from scheduler.testing.effects import read
from scheduler.worker import registry
from tenants.models import IdempotencyRecord, Tenant

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def home(settings: Settings, tmp_path: Path) -> Path:
    """What the jobs write goes here."""
    settings.FENCEPOST = replace(settings.FENCEPOST, home=tmp_path, effects=tmp_path / "effects.jsonl")
    return tmp_path


def documents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


# Hourly report ----------------------------------------------------------------------------------


def test_the_report_holds_the_totals_of_each_product(home: Path) -> None:
    result = jobs.hourly_report(LocalContext(due_at=NOON))
    (report,) = documents(home / "examples" / "reports")
    assert report["hour"] == "2026-12-01T12:00Z"
    assert report["totals"]["espresso"] == "16.80"
    assert result == {"rows": 10, "report": "sales-20261201T12.json", "total": "51.75"}


def test_a_second_attempt_leaves_the_same_report(home: Path) -> None:
    first = jobs.hourly_report(LocalContext(due_at=NOON))
    assert jobs.hourly_report(LocalContext(due_at=NOON, attempt=2, fence=2)) == first
    assert len(documents(home / "examples" / "reports")) == 1


@pytest.mark.parametrize("source", ["../jobs.py", "/etc/passwd", "absent.csv"])
def test_a_payload_cannot_name_a_file_elsewhere(source: str) -> None:
    with pytest.raises(PermanentError, match="source"):
        jobs.hourly_report(LocalContext(), source=source)


# Clean-up ---------------------------------------------------------------------------------------


@pytest.fixture
def left_behind(db: None) -> None:
    """Two of each kind: one to go, one to stay."""
    tenant = Tenant.objects.create(slug="acme", name="Acme", created_at=NOON)
    for age in (timedelta(hours=-1), timedelta(days=2)):
        Session.objects.create(session_key=f"session{age}", session_data="", expire_date=NOON - age)
        IdempotencyRecord.objects.create(
            tenant=tenant, key=f"key{age}", request_hash="", status=201, created_at=NOON - age
        )


@pytest.mark.usefixtures("left_behind")
def test_cleanup_deletes_what_is_over_and_nothing_else() -> None:
    assert jobs.cleanup(LocalContext(due_at=NOON)) == {"sessions": 1, "idempotency_records": 1}
    assert (Session.objects.count(), IdempotencyRecord.objects.count()) == (1, 1)
    assert jobs.cleanup(LocalContext(due_at=NOON, attempt=2)) == {"sessions": 0, "idempotency_records": 0}


@pytest.mark.usefixtures("left_behind")
def test_cleanup_stops_when_it_is_cancelled() -> None:
    with pytest.raises(Cancelled):
        jobs.cleanup(LocalContext(due_at=NOON, cancelled=True))
    assert Session.objects.count() == 2


# HTTP check -------------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[str]:
    """A server on a free port that answers with the status in the path."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path[1:]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Not into the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_site_that_answers_is_well(site: str) -> None:
    assert jobs.http_check(LocalContext(), url=f"{site}/204")["status"] == 204


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_site_that_answers_with_an_error_fails_the_run(site: str, status: int) -> None:
    with pytest.raises(HTTPError, match=str(status)):
        jobs.http_check(LocalContext(), url=f"{site}/{status}")


def test_only_the_web_can_be_checked() -> None:
    with pytest.raises(PermanentError, match="http"):
        jobs.http_check(LocalContext(), url="file:///etc/passwd")


# Invoices ---------------------------------------------------------------------------------------


def test_one_invoice_for_each_account_of_the_month_before(home: Path) -> None:
    ctx = LocalContext(due_at=NOON)
    assert jobs.invoice_run(ctx) == {"period": "2026-11", "accounts": 3, "written": 3}
    acme, globex, initech = documents(home / "examples" / "invoices")
    assert (acme["account"], acme["total"], acme["number"]) == ("acme", "132.08", ctx.key("acme"))
    assert (globex["total"], initech["total"]) == ("28.62", "58.20")
    assert [heartbeat.note for heartbeat in ctx.heartbeats] == ["acme", "globex", "initech"]


def test_an_attempt_goes_on_behind_a_killed_one(home: Path) -> None:
    """The first attempt wrote two of three; the second, with the same keys, writes the third."""
    jobs.invoice_run(LocalContext(due_at=NOON))
    *before, last = sorted((home / "examples" / "invoices").iterdir())
    written_at = [path.stat().st_mtime_ns for path in before]
    last.unlink()
    assert jobs.invoice_run(LocalContext(due_at=NOON, attempt=2, fence=2))["written"] == 1
    assert [path.stat().st_mtime_ns for path in before] == written_at


def test_the_next_month_has_its_own_invoices(home: Path) -> None:
    jobs.invoice_run(LocalContext(due_at=NOON))
    jobs.invoice_run(LocalContext(due_at=NOON + timedelta(days=31)))
    assert len(documents(home / "examples" / "invoices")) == 6


# Record -----------------------------------------------------------------------------------------


def test_record_leaves_a_line_at_its_beginning_and_one_at_its_end(home: Path) -> None:
    ctx = LocalContext(attempt=2, fence=77)
    jobs.record(ctx, seconds=0.01)
    begin, end = read(home / "effects.jsonl")
    assert (begin.phase, end.phase) == ("begin", "end")
    assert (begin.run, begin.due_at, begin.fence, begin.attempt) == (ctx.run_id, ctx.due_at, 77, 2)


def test_record_stops_soon_when_it_is_cancelled(home: Path) -> None:
    with pytest.raises(Cancelled):
        jobs.record(LocalContext(cancelled=True), seconds=3600)
    assert [effect.phase for effect in read(home / "effects.jsonl")] == ["begin"]


# The file of schedules --------------------------------------------------------------------------


def sample_schedules() -> list[dict[str, Any]]:
    file = django_settings.BASE_DIR / "examples" / "schedules.yaml"
    schedules: list[dict[str, Any]] = yaml.safe_load(file.read_text())["schedules"]
    return schedules


@pytest.mark.parametrize("schedule", sample_schedules(), ids=lambda schedule: schedule["name"])
def test_each_sample_schedule_names_a_job_and_fits_it(schedule: dict[str, Any]) -> None:
    parameters = registry.jobs()[schedule["target"]].parameters
    payload = schedule.get("payload", {})
    assert payload.keys() <= parameters["properties"].keys()
    assert set(parameters["required"]) <= payload.keys()


@pytest.mark.parametrize("name", sorted(registry.jobs()))
def test_every_parameter_has_a_type_that_a_payload_is_checked_against(name: str) -> None:
    properties = registry.jobs()[name].parameters["properties"]
    assert all(schema.get("type") for schema in properties.values())
