"""One effect and one answer for a request that is sent more than once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from rest_framework.test import APIClient

from scheduler.models import Occurrence, Schedule
from tenants.models import IdempotencyRecord
from tests import factories
from tests.factories import body

SCHEDULES = "/api/v1/schedules"
AT_ONCE = 20


def create(client: APIClient, key: str, **changes: Any) -> Any:
    return client.post(SCHEDULES, body(**changes), HTTP_IDEMPOTENCY_KEY=key)


@pytest.mark.django_db
class TestOneAfterTheOther:
    def test_the_first_answer_comes_again(self, alice: APIClient) -> None:
        first, second = create(alice, "k"), create(alice, "k")
        assert (first.status_code, second.status_code) == (201, 201)
        assert second.json() == first.json()
        assert (second["Location"], second["ETag"]) == (first["Location"], first["ETag"])
        assert second["Idempotency-Replayed"] == "true"
        assert Schedule.objects.count() == 1

    def test_another_body_is_refused(self, alice: APIClient) -> None:
        create(alice, "k")
        answer = create(alice, "k", name="another")
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
        assert Schedule.objects.count() == 1

    def test_another_path_is_another_request(self, alice: APIClient) -> None:
        schedule_id = create(alice, "k").json()["id"]
        answer = alice.post(f"{SCHEDULES}/{schedule_id}/trigger", {}, HTTP_IDEMPOTENCY_KEY="k")
        assert answer.status_code == 422

    def test_keys_of_tenants_are_their_own(self, alice: APIClient, charlie: APIClient) -> None:
        assert create(alice, "k").json()["id"] != create(charlie, "k").json()["id"]

    def test_a_refused_request_may_be_corrected_under_its_key(self, alice: APIClient) -> None:
        assert create(alice, "k", target="nope").status_code == 400
        assert create(alice, "k").status_code == 201

    def test_a_key_lives_for_a_day(self, alice: APIClient) -> None:
        create(alice, "k")
        IdempotencyRecord.objects.update(created_at=F("created_at") - timedelta(hours=23, minutes=59))
        assert create(alice, "k", name="later").status_code == 422
        IdempotencyRecord.objects.update(created_at=F("created_at") - timedelta(minutes=2))
        assert create(alice, "k", name="later").status_code == 201

    def test_triggering_twice_is_one_run(self, alice: APIClient) -> None:
        url = f"{SCHEDULES}/{create(alice, 'k').json()['id']}/trigger"
        first, second = (alice.post(url, {}, HTTP_IDEMPOTENCY_KEY="t") for _ in range(2))
        assert (first.status_code, second.status_code) == (202, 202)
        assert first.json() == second.json()
        assert Occurrence.objects.count() == 1

    @pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * 256])
    def test_refuses_a_key_that_it_cannot_keep(self, alice: APIClient, key: str) -> None:
        answer = create(alice, key)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "Idempotency-Key")


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    @pytest.fixture(autouse=True)
    def _empty_ledger(self, transactional_db: None) -> Iterator[None]:
        yield
        factories.empty_ledger()

    def test_twenty_creations_are_one_schedule(self, alice: APIClient) -> None:
        answers = _at_once(lambda: create(alice, "k"))
        assert [answer.status_code for answer in answers] == [201] * AT_ONCE
        assert len({answer.content for answer in answers}) == 1
        assert sum("Idempotency-Replayed" in answer for answer in answers) == AT_ONCE - 1
        assert Schedule.objects.count() == 1

    def test_twenty_triggers_are_one_run(self, alice: APIClient) -> None:
        url = f"{SCHEDULES}/{create(alice, 'k').json()['id']}/trigger"
        answers = _at_once(lambda: alice.post(url, {}, HTTP_IDEMPOTENCY_KEY="t"))
        assert {answer.status_code for answer in answers} == {202}
        assert Occurrence.objects.count() == 1

    def test_twenty_of_one_name_without_a_key_are_one_schedule_too(self, alice: APIClient) -> None:
        answers = _at_once(lambda: alice.post(SCHEDULES, body()))
        assert sorted(answer.status_code for answer in answers) == [201] + [400] * (AT_ONCE - 1)
        assert Schedule.objects.count() == 1


def _at_once(send: Any) -> list[Any]:
    """Answers of twenty threads, each on a connection of its own, that start together."""
    barrier = threading.Barrier(AT_ONCE)

    def one(_: int) -> Any:
        barrier.wait()
        try:
            return send()
        finally:
            connection.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(AT_ONCE)))
