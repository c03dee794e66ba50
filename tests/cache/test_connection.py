"""The connection: errors at the call, and no call without an end."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache.connection import Connection
from cache.directory import Access
from cache.errors import CacheError, Fault
from tests.cache.processes import holding, python


def make_table(connection: Connection) -> None:
    if connection.access is Access.WRITE:
        connection.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER)")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite"


Open = Callable[..., Connection]


@pytest.fixture
def connect(path: Path) -> Iterator[Open]:
    opened = []

    def call(access: Access = Access.WRITE, timeout: float = 5.0) -> Connection:
        opened.append(Connection(path, access, timeout, make_table))
        return opened[-1]

    yield call
    for connection in opened:
        connection.close()


def rows(connection: Connection) -> list[int]:
    return [row[0] for row in connection.select("SELECT x FROM t ORDER BY x")]


def test_a_commit_is_synced_and_there_is_no_log_beside_the_file(connect: Open) -> None:
    connection = connect()
    assert connection.select_one("PRAGMA synchronous") == (2,)
    assert connection.select_one("PRAGMA journal_mode") == ("truncate",)
    assert connection.select_one("PRAGMA trusted_schema") == (0,)


def test_a_transaction_happens_as_a_whole_or_not_at_all(connect: Open) -> None:
    connection = connect()

    def half() -> None:
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (2)")
        with connection.transaction():
            connection.executemany("INSERT INTO t VALUES (?)", [(3,), (4,)])
    assert rows(connection) == [2, 3, 4]


def test_an_error_comes_at_the_call_that_caused_it(connect: Open) -> None:
    connection = connect()
    with pytest.raises(CacheError, match="no such table"):
        connection.execute("INSERT INTO other VALUES (1)")
    connection.execute("INSERT INTO t VALUES (1)")
    assert rows(connection) == [1]


def test_writing_while_another_process_writes_ends_with_the_time_limit(connect: Open, path: Path) -> None:
    connect().execute("INSERT INTO t VALUES (1)")
    impatient = connect(timeout=0.2)
    with holding(path, "BEGIN IMMEDIATE"):
        assert rows(impatient) == [1]
        with pytest.raises(CacheError, match=r"held it for more than 0\.2 s") as caught:
            impatient.execute("INSERT INTO t VALUES (2)")
        assert caught.value.fault is Fault.LOCKED
        assert caught.value.exit_code == 3
    impatient.execute("INSERT INTO t VALUES (2)")
    assert rows(impatient) == [1, 2]


def test_a_reader_that_does_not_go_away_fails_the_commit_and_nothing_is_half_done(
    connect: Open, path: Path
) -> None:
    connect().execute("INSERT INTO t VALUES (1)")
    impatient = connect(timeout=0.2)
    with holding(path, "BEGIN", "SELECT * FROM t"):
        with pytest.raises(CacheError) as caught, impatient.transaction():
            impatient.execute("INSERT INTO t VALUES (2)")
        assert caught.value.fault is Fault.LOCKED
        assert rows(impatient) == [1]
    with impatient.transaction():
        impatient.execute("INSERT INTO t VALUES (3)")
    assert rows(impatient) == [1, 3]


def test_opening_an_exclusively_locked_database_ends_with_the_time_limit(connect: Open, path: Path) -> None:
    connect().execute("INSERT INTO t VALUES (1)")
    with holding(path, "BEGIN EXCLUSIVE"), pytest.raises(CacheError) as caught:
        rows(connect(timeout=0.2))
    assert caught.value.fault is Fault.LOCKED


def test_a_query_without_an_end_is_stopped(connect: Open) -> None:
    connection = connect(timeout=0.3)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(CacheError, match=r"more than 0\.3 s") as caught:
        connection.select(endless)
    assert caught.value.fault is Fault.LOCKED

    def half() -> None:
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (1)")
            connection.select(endless)

    with pytest.raises(CacheError):
        half()
    assert rows(connection) == []


def test_another_thread_is_waited_for_no_longer_than_the_limit(connect: Open) -> None:
    connection = connect(timeout=0.3)
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.transaction():
            begun.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(20)
    with pytest.raises(CacheError, match="another thread"):
        rows(connection)
    done.set()
    holder.join(20)
    assert rows(connection) == []


def test_threads_share_a_connection(connect: Open) -> None:
    connection = connect()

    def add(number: int) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (?)", (number,))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert rows(connection) == list(range(8))


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether ``work`` is true in a forked process, which does not outlive the test."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads, which is what some of these tests are about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_a_forked_process_opens_its_own_connection(connect: Open) -> None:
    connection = connect()
    connection.execute("INSERT INTO t VALUES (1)")

    def work() -> bool:
        connection.execute("INSERT INTO t VALUES (2)")
        return rows(connection) == [1, 2]

    assert in_a_child(work)
    connection.execute("INSERT INTO t VALUES (3)")
    assert rows(connection) == [1, 2, 3]


def test_a_forked_process_leaves_its_parents_locks_alone(connect: Open, path: Path) -> None:
    connection, other = connect(), connect(timeout=0.1)
    connection.execute("INSERT INTO t VALUES (1)")

    def work() -> bool:
        return rows(connection) == [1]

    assert in_a_child(work)
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (2)")
        # From another process, for which the lock must still be there.
        found = python(
            "import sqlite3, sys\n"
            "sqlite3.connect(sys.argv[1], timeout=0.1, isolation_level=None).execute('BEGIN IMMEDIATE')",
            path,
        )
        assert "database is locked" in found.stderr
    assert rows(other) == [1, 2]


def test_a_fork_in_the_middle_of_another_threads_call_is_told_in_the_child(connect: Open) -> None:
    connection = connect()
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (1)")
            begun.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(20)

    def work() -> bool:
        try:
            rows(connection)
        except CacheError as error:
            return "forked in the middle of a call" in str(error)
        return False

    assert in_a_child(work)
    done.set()
    holder.join(20)
    assert rows(connection) == [1]


def test_a_fork_without_pythons_knowledge_is_noticed(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect()
    connection.execute("INSERT INTO t VALUES (1)")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(CacheError, match="forked in the middle"):
            rows(connection)


def test_a_full_database_says_so_and_keeps_what_it_has(connect: Open) -> None:
    connection = connect()
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("PRAGMA max_page_count=3")
    with pytest.raises(CacheError, match="the disk is full") as caught, connection.transaction():
        connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(100_000)])
    assert caught.value.fault is Fault.FULL
    assert rows(connection) == [1]


@pytest.mark.parametrize("access", [Access.READ, Access.IMMUTABLE])
def test_reading_leaves_no_trace(connect: Open, path: Path, access: Access) -> None:
    connect().execute("INSERT INTO t VALUES (1)")
    for file in path.parent.iterdir():
        if file != path:
            file.unlink()
    reader = connect(access)
    assert rows(reader) == [1]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(CacheError) as caught:
        reader.execute("INSERT INTO t VALUES (2)")
    assert caught.value.fault is Fault.READ_ONLY


def killed_while_writing(path: Path) -> None:
    """Leaves a journal that has to be rolled back: the process dies once pages were overwritten."""
    done = python(
        """
        import os, sqlite3, sys
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        db.execute("PRAGMA journal_mode=TRUNCATE")
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(2, 20_000)])
        os._exit(0)
        """,
        path,
    )
    assert done.returncode == 0, done.stderr
    assert Path(f"{path}-journal").stat().st_size > 0


def test_what_a_dead_writer_left_is_rolled_back(connect: Open, path: Path) -> None:
    first = connect()
    first.execute("INSERT INTO t VALUES (1)")
    first.close()
    killed_while_writing(path)
    assert rows(connect()) == [1]


def test_what_a_dead_writer_left_is_not_read_from_a_read_only_file_system(connect: Open, path: Path) -> None:
    first = connect()
    first.execute("INSERT INTO t VALUES (1)")
    first.close()
    killed_while_writing(path)
    with pytest.raises(CacheError, match="left in the middle of a write"):
        rows(connect(Access.IMMUTABLE))


def test_a_pipe_in_the_place_of_the_database_is_refused_without_waiting(connect: Open, path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(CacheError, match="no file of its own") as caught:
        rows(connect())
    assert caught.value.fault is Fault.FOREIGN


def test_a_missing_folder_is_an_ordinary_error(tmp_path: Path) -> None:
    connection = Connection(tmp_path / "no" / "db", Access.WRITE, 1.0, make_table)
    with pytest.raises(CacheError) as caught:
        rows(connection)
    assert caught.value.fault is Fault.UNREACHABLE


def test_a_closed_connection_opens_again(connect: Open) -> None:
    connection = connect()
    connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    connection.close()
    assert rows(connection) == [1]


def test_names_with_signs_of_an_address_are_names(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=ro&x#%41 ü"
    connection = Connection(path, Access.WRITE, 1.0, make_table)
    connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    assert sqlite3.connect(path).execute("SELECT x FROM t").fetchall() == [(1,)]
