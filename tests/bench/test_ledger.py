"""The bench of the ledger still runs on this schema; what it measures is not looked at here."""

from bench.ledger import SESSIONS, Bench


def test_each_figure_is_taken(database: str) -> None:
    bench = Bench(database, runs={4: 8})
    assert bench.rate(4).ratio > 0
    assert bench.liveness(running=SESSIONS, renewals=1).share_of_a_core >= 0
    bench.connection.close()
