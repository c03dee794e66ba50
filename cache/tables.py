"""The database's tables: JSON values that prove themselves, and a catalogue to find them by."""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Any

from sqlitedict import SqliteDict

from cache.connection import Connection
from cache.directory import Access, name_of
from cache.errors import CacheError, Fault
from planner.documents.deployment import Json

APPLICATION = 0x67726170
"""SQLite's mark of whose database this is: ``grap``."""

SCHEMA = 1

MAX_RECORD_BYTES = 64 * 2**20

_HASH = 64
_HEAD = len('["') + _HASH + len('",')


class Kind(Enum):
    """What is stored, by the name of its table."""

    PLAN = "plans"
    CAPTURE = "captures"
    TRAFFIC = "traffic"
    ARTIFACT = "artifacts"

    def __str__(self) -> str:
        return self.value


# ``turn`` counts uses through the whole cache: unlike clocks it never goes backwards.
CATALOGUE = """
CREATE TABLE IF NOT EXISTS catalogue (
    kind TEXT NOT NULL, key TEXT NOT NULL, plan TEXT NOT NULL, model TEXT NOT NULL, gpu TEXT NOT NULL,
    engine TEXT NOT NULL, family TEXT NOT NULL, rank INTEGER NOT NULL, bytes INTEGER NOT NULL, blob TEXT,
    created REAL NOT NULL, used REAL NOT NULL, turn INTEGER NOT NULL, uses INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""
INDEXES = (
    "CREATE INDEX IF NOT EXISTS catalogue_plan ON catalogue (plan, kind)",
    "CREATE INDEX IF NOT EXISTS catalogue_turn ON catalogue (turn)",
    "CREATE INDEX IF NOT EXISTS catalogue_blob ON catalogue (blob) WHERE blob IS NOT NULL",
)


class JsonTable(SqliteDict):  # type: ignore[misc]  # sqlitedict has no annotations
    """A table of ``SqliteDict`` on the cache's own connection, without its thread and without pickle."""

    def __init__(self, connection: Connection, kind: Kind) -> None:
        self._connection = connection
        super().__init__(
            str(connection.path), tablename=str(kind), autocommit=True, encode=encoded, decode=decoded
        )
        if connection.access is not Access.WRITE:
            self.flag = "r"

    def _new_conn(self) -> Connection:
        return self._connection

    def close(self, do_log: bool = True, force: bool = False) -> None:  # noqa: ARG002 - SqliteDict's signature
        """Lets go of the connection, which the other tables go on using."""
        self.conn = None


def encoded(value: Json) -> str:
    """The text that a table stores: a JSON list of the value's SHA-256 and the value.

    Raises:
        CacheError: JSON has no such value, or it is too large.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"this cannot be stored as JSON: {error}", fault=Fault.INVALID) from None
    if len(text) > MAX_RECORD_BYTES:
        raise CacheError(
            f"a record of {len(text)} bytes is larger than {MAX_RECORD_BYTES // 2**20} MiB",
            fault=Fault.INVALID,
        )
    return f'["{_sha256(text)}",{text}]'


def decoded(stored: Any) -> Json:
    """The value that a table has stored as ``stored``. Bytes, which a pickle would be, are never loaded.

    Raises:
        CacheError: this is not what ``encoded`` wrote.
    """
    if not isinstance(stored, str):
        raise _altered("holds binary data, such as a pickle, which is never loaded")
    text = stored[_HEAD:-1]
    if stored != f'["{stored[2 : 2 + _HASH]}",{text}]' or stored[2 : 2 + _HASH] != _sha256(text):
        raise _altered("is not what was stored: its checksum differs")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _altered("is no JSON") from None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _altered(what: str) -> CacheError:
    return CacheError(f"a record {what}", fault=Fault.ALTERED, fix="planner cache check --fix removes it")


def set_up(connection: Connection) -> None:
    """Makes the tables in a new database, and refuses one that is not this program's.

    Raises:
        CacheError: it is another program's or a later version's, or it cannot be read or made.
    """
    if _is_ours(connection):
        return
    if connection.access is not Access.WRITE:
        raise CacheError("there is no cache here yet", fault=Fault.MISSING, path=name_of(connection.path))
    connection.execute("PRAGMA auto_vacuum=FULL")  # of effect ahead of the first table only
    with connection.transaction():
        if _is_ours(connection):  # another process was quicker
            return
        for kind in Kind:
            # As SqliteDict makes it.
            connection.execute(f'CREATE TABLE IF NOT EXISTS "{kind}" (key TEXT PRIMARY KEY, value BLOB)')
        connection.execute(CATALOGUE)
        for index in INDEXES:
            connection.execute(index)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")


def _is_ours(connection: Connection) -> bool:
    """Whether the tables are there; ``False`` for a database without any.

    Raises:
        CacheError: there are others.
    """
    with connection.snapshot():  # another process may be making the tables
        application = _number(connection, "application_id")
        version = _number(connection, "user_version")
        is_empty = not connection.select("SELECT 1 FROM sqlite_master LIMIT 1")
    name = name_of(connection.path)
    if application == APPLICATION:
        if version > SCHEMA:
            raise CacheError(
                f"a later graphplan wrote it (schema {version}, this one reads {SCHEMA}); update graphplan, "
                "or name another directory",
                fault=Fault.NEWER,
                path=name,
            )
        if version == SCHEMA:
            return True
    elif application == 0 and version == 0 and is_empty:
        return False
    raise CacheError("is no database of graphplan; name another directory", fault=Fault.FOREIGN, path=name)


def _number(connection: Connection, pragma: str) -> int:
    row = connection.select_one(f"PRAGMA {pragma}")
    return row[0] if row is not None and isinstance(row[0], int) else 0
