"""What holds for every page: its policy, escaping, and what keyboards and screen readers need."""

import re
from collections.abc import Callable

import pytest
from django.http import HttpResponse
from django.test import Client

from scheduler.core.states import State
from tests.support.html import Document
from tests.support.scene import Scene, make_run, make_schedule

EVIL = "<script>alert('1')</script>&\"<b onclick=x>"
CSS = "tenants/dashboard/static/dashboard/dashboard.css"


@pytest.fixture
def pages(scene: Scene, alice: Client) -> dict[str, HttpResponse]:
    """Every page, full of markup that people and jobs have written."""
    body = {"description": EVIL, "payload": {"kind": EVIL}, "tags": [EVIL]}
    schedule = make_schedule(scene.acme, EVIL, **body)
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    failed = make_run(schedule, State.FAILED, outcomes=("failed",), attempt_error=error, error=error)
    progress = {"percent": 40, "note": EVIL}
    running = make_run(schedule, State.RUNNING, outcomes=(None,), progress=progress, result={EVIL: EVIL})
    refused = {"name": EVIL, "target": EVIL, "kind": "cron", "cron": EVIL, "timezone": EVIL, "payload": EVIL}
    return {
        "home": alice.get("/"),
        "schedule": alice.get(f"/schedules/{schedule.id}"),
        "new": alice.get("/schedules/new"),
        "refused": alice.post("/schedules/new", refused),
        "runs": alice.get("/runs"),
        "runs of a schedule": alice.get(f"/runs?schedule={schedule.id}"),
        "failed run": alice.get(f"/runs/{failed.id}"),
        "running run": alice.get(f"/runs/{running.id}"),
        "fragment": alice.post("/schedules/preview", refused, headers={"HX-Request": "true"}),
        "live part": alice.get(f"/runs/{running.id}", headers={"HX-Request": "true"}),
        "not found": alice.get("/no-such-page"),
        "sign in": Client().get("/login"),
        "sign in refused": Client().post("/login", {"username": EVIL, "password": EVIL}),
    }


def test_scripts_and_styles_come_from_files_only(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        for element in Document.of(response).elements:
            assert element.tag != "style", name
            assert element.tag != "script" or element["src"].startswith("/static/"), name
            forbidden = {
                key for key in element.attributes if key == "style" or key.startswith(("on", "hx-on"))
            }
            assert not forbidden, (name, element)
            assert not element["href"].lower().startswith("javascript:"), name


def test_the_policy_allows_nothing_inline(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy, name
        assert "unsafe" not in policy, name
        assert response.headers["X-Frame-Options"] == "DENY"


def test_what_people_write_is_shown_as_text(pages: dict[str, HttpResponse]) -> None:
    shown = {name for name, response in pages.items() if EVIL in "".join(_text(response))}
    assert shown >= {"home", "schedule", "runs", "failed run", "running run", "live part"}
    for name, response in pages.items():
        assert "<b onclick" not in response.content.decode(), name


def test_every_page_has_landmarks_one_heading_and_unique_ids(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        document = Document.of(response)
        ids = [element["id"] for element in document.elements if element["id"]]
        assert len(ids) == len(set(ids)), (name, ids)
        if "<html" in response.content.decode():
            assert document.all("html", lang="en"), name
            assert len(document.all("h1")) == 1, name
            assert len(document.all("main")) == 1, name
            assert document.all("a", class_="skip", href="#main"), name
            assert document.texts("title")[0].endswith("Fencepost"), name


def test_every_control_has_a_name(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        document = Document.of(response)
        labelled = {label["for"] for label in document.all("label")}
        for tag in ("input", "select", "textarea", "progress"):
            for control in document.all(tag):
                assert control["type"] == "hidden" or control["id"] in labelled, (name, control)
        for tag in ("button", "a", "summary"):
            assert all(document.texts(tag)), (name, tag)


def test_help_and_errors_belong_to_their_control(pages: dict[str, HttpResponse]) -> None:
    document = Document.of(pages["refused"])
    ids = {element["id"] for element in document.elements}
    for control in [*document.all("input"), *document.all("textarea")]:
        described = set(control["aria-describedby"].split())
        assert described <= ids, control
        assert control["aria-invalid"] != "true" or any("error" in part for part in described), control


def test_states_are_told_by_words_and_changes_are_announced(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        assert all(Document.of(response).texts("span", class_="state")), name
    assert Document.of(pages["new"]).all("div", id="preview")[0]["aria-live"] == "polite"
    assert Document.of(pages["running run"]).all("p", id="run-status")[0]["role"] == "status"


def test_every_form_that_posts_carries_a_token(pages: dict[str, HttpResponse]) -> None:
    for name, response in pages.items():
        document = Document.of(response)
        posting = document.all("form", method="post")
        assert len(document.all("input", name="csrfmiddlewaretoken")) == len(posting), name


@pytest.mark.parametrize("template", ["400", "403", "403_csrf", "404", "500"])
def test_error_pages_need_nothing_from_the_request(template: str) -> None:
    from django.template.loader import render_to_string

    page = Document(render_to_string(f"{template}.html"))
    assert page.texts("h1")[0]
    assert page.all("a", class_="button", href="/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 to 1, for every colour that text is written in on every ground it stands on."""
    colours = _tokens(scheme)
    pairs = [
        (ink, ground) for ink in ("ink", "ink-soft", "accent") for ground in ("ground", "surface", "sunken")
    ]
    pairs += [(tone, f"{tone}-wash") for tone in ("good", "bad", "warn", "busy")]
    pairs += [("bad", "surface"), ("accent-ink", "accent"), ("ink", "accent-wash"), ("ink", "bad-wash")]
    for ink, ground in pairs:
        assert _contrast(colours[ink], colours[ground]) >= 4.5, (scheme, ink, ground)


def _text(response: HttpResponse) -> list[str]:
    return [part for element in Document.of(response).all("main") for part in element.text] or [
        part for element in Document.of(response).elements[:1] for part in element.text
    ]


def _tokens(scheme: str) -> dict[str, str]:
    with open(CSS) as file:
        light, dark = re.findall(r":root \{(.*?)\}", file.read(), re.DOTALL)[:2]
    named: Callable[[str], dict[str, str]] = lambda block: dict(re.findall(r"--([\w-]+): (#\w{6});", block))  # noqa: E731
    return named(light) if scheme == "light" else named(dark)


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
