"""What is served beside the resources: health, the schema, the docs page."""

import json
from html.parser import HTMLParser
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client

from scheduler import checks
from scheduler.orm import raw_connection
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def owned(db: None) -> None:
    """Every shard has a tick."""
    with raw_connection().cursor() as cursor:
        cursor.execute(
            "INSERT INTO shard_lease (kind, shard, owner, expires_at)"
            " SELECT 'tick', shard, gen_random_uuid(), clock_timestamp() + interval '6 s'"
            " FROM generate_series(0, 255) AS shard"
        )
        cursor.execute(
            "INSERT INTO session (id, kind, worker, started_at, renewed_at, expires_at)"
            " SELECT gen_random_uuid(), 'tick', 'host:1', now(), now(), clock_timestamp() + span"
            " FROM (VALUES (interval '30 s'), (interval '30 s'), (interval '-1 s')) AS s(span)"
        )


def sql(statement: str) -> None:
    with raw_connection().cursor() as cursor:
        cursor.execute(statement.encode())


def test_healthz_answers_to_anybody(client: Client) -> None:
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


class TestReadiness:
    def test_a_machine_at_work_is_ready(self, client: Client, owned: None) -> None:
        answer = client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json() == {
            "ok": True,
            "database": True,
            "broker": True,
            "ticks": 2,
            "shards_unowned": 0,
            "oldest_due_age_s": 0.0,
        }

    def test_without_any_tick_it_is_not(self, client: Client) -> None:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["shards_unowned"]) == (503, 256)

    @pytest.mark.parametrize(("seconds", "status"), [(5, 200), (16, 503)])
    def test_shards_may_be_without_owner_for_a_while(
        self, client: Client, owned: None, seconds: int, status: int
    ) -> None:
        sql(
            f"UPDATE shard_lease SET expires_at = clock_timestamp() - interval '{seconds} s', owner = NULL"
            " WHERE shard < 3"
        )
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["shards_unowned"]) == (status, 3)

    @pytest.mark.parametrize(("seconds", "status"), [(5, 200), (31, 503)])
    def test_instants_that_no_tick_has_met_count(
        self, client: Client, owned: None, seconds: int, status: int
    ) -> None:
        factories.schedule(factories.TenantFactory())
        sql(f"UPDATE schedule SET next_due_at = clock_timestamp() - interval '{seconds} s'")
        answer = client.get("/readyz")
        assert answer.status_code == status
        assert seconds <= answer.json()["oldest_due_age_s"] < seconds + 5

    def test_a_broker_that_is_away_is_shown_and_no_more(
        self, client: Client, owned: None, settings: LazySettings
    ) -> None:
        settings.CELERY_BROKER_URL = "amqp://guest:guest@127.0.0.1:1//"
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["broker"]) == (200, False)

    def test_a_database_that_is_away_is_a_503(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> Any:
            raise OperationalError from psycopg.OperationalError()

        monkeypatch.setattr(checks, "raw_connection", away)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["database"]) == (503, False)


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_cut_is_replaced(live_server: Any) -> None:
    """As after a restart of the database: the next request finds a new connection by itself."""

    def ask() -> bool:
        try:
            with urlopen(f"{live_server.url}/readyz") as answer:
                return bool(json.load(answer)["database"])
        except HTTPError as refused:  # there is no tick here
            return bool(json.load(refused)["database"])

    assert ask()
    sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_get_activity(NULL) WHERE pid <> pg_backend_pid()"
        " AND datid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert ask()


class TestDocumentation:
    def test_the_schema_is_open_and_names_every_call(self, client: Client) -> None:
        answer = client.get("/api/v1/schema", headers={"accept": "application/vnd.oai.openapi+json"})
        schema = json.loads(answer.content)
        assert schema["openapi"].startswith("3.1")
        names = {call["operationId"] for path in schema["paths"].values() for call in path.values()}
        assert names == {
            "list_schedules", "create_schedule", "read_schedule", "edit_schedule", "delete_schedule",
            "pause_schedule", "resume_schedule", "trigger_schedule", "preview_schedule", "preview_draft",
            "list_runs", "list_runs_of_schedule", "read_run", "cancel_run",
            "redrive_run", "dismiss_run", "reconcile_run",
            "preview_edit", "explain_schedule", "backfill_schedule",
            "heartbeat_run", "complete_run",
            "list_targets", "create_target", "read_target", "edit_target", "delete_target",
            "rotate_target_secret",
            "list_calendars", "create_calendar", "read_calendar", "edit_calendar", "delete_calendar",
        }  # fmt: skip

    def test_the_schema_is_generated_without_a_warning(self) -> None:
        call_command("spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null")

    def test_the_docs_page_needs_nothing_from_elsewhere(self, client: Client) -> None:
        answer = client.get("/api/v1/docs")
        assert answer.status_code == 200
        page = _Page()
        page.feed(answer.content.decode())
        assert page.sources
        assert all(source.startswith("/") for source in page.sources)
        assert page.inline == []
        static = [source for source in page.sources if source.startswith("/static/")]
        assert all(finders.find(source.removeprefix("/static/")) for source in static)
        (script,) = set(page.sources) - set(static)
        assert client.get(script)["Content-Type"] == "application/javascript"


class _Page(HTMLParser):
    """What a page loads, and the scripts and styles that it holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.inline: list[str] = []
        self.within = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        source = found.get("src") or (found.get("href") if tag == "link" else None)
        if source:
            self.sources.append(source)
        self.within = tag if tag in ("script", "style") and not found.get("src") else ""

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within and data.strip():
            self.inline.append(data)
