"""The bench of the core still runs on this schema, and its bounds hold. No speed is looked at."""

import psycopg

from bench.time import RARE, BatchBench, cron, held_kib, measure, months_looked_at


def test_both_ways_are_measured_against_croniter() -> None:
    figures = list(measure(["30 2 * * *"]))
    assert [figure.way for figure in figures] == ["walk", "jump"]
    assert all(figure.ratio > 0 for figure in figures)


def test_a_ticks_round_is_taken_apart(database: str) -> None:
    """Each schedule became a row in each round, or the round would have said so."""
    with psycopg.connect(database, autocommit=True) as connection:
        taken = BatchBench(connection, schedules=60).measure(rounds=1)
    assert 0 < taken.planning_ms < taken.computing_ms
    assert taken.database_ms > 0


def test_twice_the_years_are_listed_in_the_same_memory() -> None:
    hourly = cron("0 * * * *")
    assert held_kib(hourly, 20) < 1.25 * held_kib(hourly, 10)


def test_a_search_for_a_rare_day_looks_at_the_months_of_eight_years_at_most() -> None:
    """The 29th of February is that rare around a century; a search by days would look at thousands."""
    for expression in RARE:
        assert 0 < months_looked_at(expression) <= 8 * 12 + 1
