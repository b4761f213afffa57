"""Runs: one run while it moves and when it is over, and the list."""

import re
from datetime import timedelta

import pytest
from django.http import HttpResponse
from django.test import Client
from django_celery_results.models import TaskResult

from scheduler.core.states import TERMINAL, State
from scheduler.models import Occurrence
from tests.support.html import Document
from tests.support.scene import Scene, make_run, make_schedule

HTMX = {"HX-Request": "true"}
ERROR = {"type": "ValueError", "message": "no such column", "traceback": "File jobs.py, line 3"}
OUTCOMES = {State.SUCCEEDED: ("succeeded",), State.RUNNING: (None,), State.UNKNOWN: ("lost",)}


def refresh_of(response: HttpResponse) -> str:
    """Where the live part asks next; empty when it does not."""
    return Document.of(response).all("div", id="live")[0]["hx-get"]


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_page(state: State, scene: Scene, alice: Client) -> None:
    started = state not in (State.PENDING, State.QUEUED, State.SKIPPED, State.CANCELLED)
    outcomes = OUTCOMES.get(state, ("failed",)) if started else ()
    run = make_run(make_schedule(scene.acme), state, outcomes=outcomes, attempt_error=ERROR)
    response = alice.get(f"/runs/{run.id}")
    document = Document.of(response)
    assert response.status_code == 200
    assert document.texts("p", class_="why")[0].endswith(".")
    assert bool(refresh_of(response)) is (state not in TERMINAL | {State.UNKNOWN})


def test_attempts_show_worker_fence_outcome_and_error(scene: Scene, alice: Client) -> None:
    outcomes = ("lost", "failed", "succeeded")
    run = make_run(make_schedule(scene.acme), outcomes=outcomes, attempt_error=ERROR)
    (timeline,) = Document.of(alice.get(f"/runs/{run.id}")).texts("ol", class_="timeline")
    for number, outcome in enumerate(outcomes, start=1):
        assert f"Attempt {number}: {outcome}" in timeline
    assert "worker-1:4242" in timeline
    assert f"fence {run.fence}" in timeline
    assert "ValueError: no such column" in timeline
    assert "File jobs.py, line 3" in timeline


def test_a_run_on_request_shows_its_own_payload_and_what_celery_kept(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme, payload={"kind": "of the schedule"}))
    Occurrence.objects.filter(id=run.id).update(payload={"kind": "its own"})
    TaskResult.objects.create(task_id=str(run.id), status="SUCCESS", result='{"doubled": 8}')
    (details,) = Document.of(alice.get(f"/runs/{run.id}")).texts("dl", class_="facts")
    assert "its own" in details
    assert "of the schedule" not in details
    assert '{"doubled": 8}' in details


def test_an_unchanged_run_is_answered_by_nothing(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.QUEUED)
    url = refresh_of(alice.get(f"/runs/{run.id}"))
    assert alice.get(url, headers=HTMX).status_code == 204
    _advance(run, state=State.RUNNING, started_at=run.due_at, attempt_count=1, fence=7)
    changed = alice.get(url, headers=HTMX)
    assert changed.status_code == 200
    assert "Running" in Document.of(changed).texts("p", id="run-status")
    assert refresh_of(changed) != url


def test_a_run_that_ended_asks_no_more_and_loses_its_button(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.RUNNING, outcomes=(None,))
    url = refresh_of(alice.get(f"/runs/{run.id}"))
    _advance(run, state=State.SUCCEEDED, finished_at=run.due_at)
    ended = alice.get(url, headers=HTMX)
    assert refresh_of(ended) == ""
    assert Document.of(ended).texts("div", id="run-actions") == [""]
    assert "<html" not in ended.content.decode()


def test_without_javascript_the_page_reloads_until_the_run_is_over(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    for state, reloads in ((State.RUNNING, True), (State.SUCCEEDED, False)):
        page = alice.get(f"/runs/{make_run(schedule, state).id}").content.decode()
        assert bool(re.search(r'<noscript><meta http-equiv="refresh"', page)) is reloads


def test_caches_tell_pages_from_fragments(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.QUEUED)
    assert "HX-Request" in alice.get(f"/runs/{run.id}").headers["Vary"]


def test_cancel_a_waiting_run(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.QUEUED)
    document = Document.of(alice.post(f"/runs/{run.id}/cancel", follow=True))
    assert document.texts("p", class_="message") == ["Cancelled."]
    run.refresh_from_db()
    assert run.state == State.CANCELLED


def test_a_running_run_is_asked_to_stop_once(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.RUNNING, outcomes=(None,))
    document = Document.of(alice.post(f"/runs/{run.id}/cancel", follow=True))
    assert document.texts("p", class_="message") == ["Asked to stop. The worker ends it shortly."]
    assert "Cancel this run" not in document.texts("button")


def test_a_run_that_is_over_is_not_cancelled(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme))
    document = Document.of(alice.post(f"/runs/{run.id}/cancel", follow=True))
    assert document.texts("p", class_="error")
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED


def test_what_failed_is_tried_again_or_dismissed(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    failed = make_run(schedule, State.DEAD_LETTERED, outcomes=("failed",) * 5)
    assert {"Try again", "Dismiss"} <= set(Document.of(alice.get(f"/runs/{failed.id}")).texts("button"))
    page = Document.of(alice.post(f"/runs/{failed.id}/dismiss", follow=True))
    assert page.texts("p", class_="message") == ["Dismissed. It no longer needs attention."]
    assert "Dismiss" not in page.texts("button")
    assert _listed(alice, "?show=attention") == []
    page = Document.of(alice.post(f"/runs/{failed.id}/redrive", follow=True))
    assert page.texts("p", class_="message") == ["It is tried again, with a fresh budget of attempts."]
    failed.refresh_from_db()
    assert (failed.state, failed.tries) == (State.PENDING, 0)


@pytest.mark.parametrize(
    ("outcome", "state", "told"),
    [
        ("succeeded", State.SUCCEEDED, "Recorded: it succeeded."),
        ("failed", State.FAILED, "Recorded: it failed."),
        ("retry", State.PENDING, "It is tried again."),
    ],
)
def test_an_unknown_outcome_is_settled_by_a_person(
    outcome: str, state: State, told: str, scene: Scene, alice: Client
) -> None:
    run = make_run(make_schedule(scene.acme), State.UNKNOWN, outcomes=("lost",))
    buttons = Document.of(alice.get(f"/runs/{run.id}")).texts("button")
    assert {"It succeeded", "It failed", "It had no effect: try again"} <= set(buttons)
    page = Document.of(alice.post(f"/runs/{run.id}/reconcile", {"outcome": outcome}, follow=True))
    assert page.texts("p", class_="message") == [told]
    run.refresh_from_db()
    assert run.state == state


def test_an_outcome_that_is_none_is_refused(scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.UNKNOWN, outcomes=("lost",))
    page = Document.of(alice.post(f"/runs/{run.id}/reconcile", {"outcome": "perhaps"}, follow=True))
    assert page.texts("p", class_="error")


@pytest.mark.parametrize("verb", ["redrive", "dismiss", "reconcile"])
def test_what_did_not_fail_is_left_alone(verb: str, scene: Scene, alice: Client) -> None:
    run = make_run(make_schedule(scene.acme))
    page = Document.of(alice.post(f"/runs/{run.id}/{verb}", {"outcome": "failed"}, follow=True))
    assert page.texts("p", class_="error")


def test_a_run_that_fails_while_it_is_watched_offers_what_can_be_done(scene: Scene, alice: Client) -> None:
    failed = make_run(make_schedule(scene.acme), State.FAILED, outcomes=("failed",))
    update = alice.get(f"/runs/{failed.id}", headers={"HX-Request": "true"})
    assert "Try again" in Document.of(update).texts("button")


# The list ---------------------------------------------------------------------------------------


def test_the_list_filters_by_what_people_ask_for(scene: Scene, alice: Client) -> None:
    schedule, other = make_schedule(scene.acme, "first"), make_schedule(scene.acme, "second")
    failed, going = make_run(schedule, State.FAILED), make_run(other, State.QUEUED)
    done = make_run(other, State.SUCCEEDED)
    expected = {
        "": {failed, going, done},
        "?show=attention": {failed},
        "?show=going": {going},
        "?show=succeeded": {done},
        "?show=nonsense": {failed, going, done},
        f"?schedule={other.id}": {going, done},
        f"?schedule={other.id}&show=succeeded": {done},
    }
    for query, runs in expected.items():
        assert set(_listed(alice, query)) == {str(run.id) for run in runs}, query


def test_the_list_has_pages_by_the_last_run_seen(
    scene: Scene, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.dashboard.views.runs.PAGE", 2)
    schedule = make_schedule(scene.acme)
    runs = [str(make_run(schedule, ago=timedelta(minutes=number)).id) for number in range(1, 6)]
    pages = ["", f"?before={runs[1]}", f"?before={runs[3]}"]
    assert [_listed(alice, page) for page in pages] == [runs[:2], runs[2:4], runs[4:]]


@pytest.mark.parametrize(
    "query", ["?before=x", "?schedule=x", "?before=ffffffff-ffff-ffff-ffff-ffffffffffff"]
)
def test_broken_addresses_break_nothing(query: str, scene: Scene, alice: Client) -> None:
    assert alice.get(f"/runs{query}").status_code in (200, 404)


def _listed(client: Client, query: str) -> list[str]:
    links = [link["id"] for link in Document.of(client.get(f"/runs{query}")).all("a")]
    return [link.removeprefix("run-") for link in links if link.startswith("run-")]


def _advance(run: Occurrence, **columns: object) -> None:
    Occurrence.objects.filter(due_at=run.due_at, id=run.id).update(**columns)


@pytest.mark.parametrize(("action", "left"), [("redrive", "PENDING"), ("dismiss", "DEAD_LETTERED")])
def test_marked_runs_of_the_list_are_settled_together_and_a_refusal_holds_up_no_other(
    action: str, left: str, scene: Scene, alice: Client
) -> None:
    schedule = make_schedule(scene.acme, overlap="allow")
    dead = [make_run(schedule, State.DEAD_LETTERED, outcomes=("failed",)) for _ in range(2)]
    fine = make_run(schedule, outcomes=("succeeded",))
    others = make_run(make_schedule(scene.other), State.DEAD_LETTERED, outcomes=("failed",))
    page = Document.of(alice.get("/runs?show=attention"))
    offered = {box["value"] for box in page.all("input", name="run")}
    assert offered == {str(run.id) for run in dead}
    marked = [*offered, str(fine.id), str(others.id), "no id"]
    answer = alice.post("/runs/settle", {"action": action, "run": marked}, follow=True)
    messages = [str(message) for message in answer.context["messages"]]
    assert messages[0].startswith("2 runs are ")
    assert set(messages[1:]) == {
        "The run is SUCCEEDED: only what failed can be redriven or dismissed.",
        "No such run.",
    }
    for run in dead:
        run.refresh_from_db()
    assert {run.state for run in dead} == {left}
    others.refresh_from_db()
    assert (others.state, others.dismissed_at) == ("DEAD_LETTERED", None)


def test_who_may_only_look_is_offered_nothing_to_mark(scene: Scene, bob: Client) -> None:
    make_run(make_schedule(scene.acme), State.DEAD_LETTERED, outcomes=("failed",))
    page = Document.of(bob.get("/runs?show=attention"))
    assert not page.all("input", name="run")
    assert not page.all("form", id="settle")
