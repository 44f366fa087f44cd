"""
Drive one PostgreSQL from one process: until runs are leased to replicas one by one, two drivers would start every
agent twice.

The lock is the session's: it is gone with the process, however that ends.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Thread

import psycopg

#: An arbitrary number that means "drives the runs of this database" among the server's advisory locks.
DRIVES = 0x57EE25
#: How long a predecessor that was just killed may take to be noticed by the server.
PATIENCE_SECONDS = 15.0
CHECK_SECONDS = 5.0


class Taken(Exception):
    """Another process drives the runs of this database."""


@contextmanager
def alone_on(url: str, lost: Callable[[], None]) -> Generator[None]:
    """
    Hold the database's lock while the block runs. Raises Taken, psycopg.Error.

    *lost* is called, once, when the connection broke and somebody else has the lock by then: whoever holds the block
    must end, since the other one drives.
    """
    connection = _take(url, PATIENCE_SECONDS)
    over = Flag()
    watch = Thread(target=_watch, args=(url, connection, over, lost), daemon=True, name="database-lock")
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _take(url: str, patience_seconds: float) -> psycopg.Connection:
    until = time.monotonic() + patience_seconds
    while True:
        connection = psycopg.connect(url, autocommit=True, application_name="steersman driver lock")
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (DRIVES,)).fetchone()
        if row is not None and row[0]:
            return connection
        connection.close()
        if time.monotonic() >= until:
            raise Taken("another process serves this database already")
        time.sleep(0.2)


def _watch(url: str, connection: psycopg.Connection, over: Flag, lost: Callable[[], None]) -> None:
    while not over.wait(CHECK_SECONDS):
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            connection.close()
            try:
                connection = _take(url, 0)
            except Taken:
                lost()
                return
            except psycopg.Error:
                # The server is away, for everybody: nobody can have taken the lock meanwhile.
                continue
    connection.close()
