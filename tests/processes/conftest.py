from tests.support.engine import clean_database, connect, connection, ledger, wait_for_lock

__all__ = ["clean_database", "connect", "connection", "ledger", "wait_for_lock"]
