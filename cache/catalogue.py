"""The catalogue's queries: what there is, what was used last, what belongs to what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from cache.connection import Connection
from cache.errors import CacheError, Fault
from cache.keys import HEX_DIGEST, Key
from cache.records import Labels, Record
from cache.tables import Kind

_COLUMNS = "kind, key, plan, model, gpu, engine, family, rank, bytes, blob, created, used, turn, uses"
_TYPES = (str, str, str, str, str, str, str, int, int, str | None, float, float, int, int)
_KINDS = {str(kind): kind for kind in Kind}


@frozen(kw_only=True)
class Summary:
    """One record in a list. ``num_bytes`` includes its file; times are in seconds since 1970.

    ``turn`` orders records by their last use, ``uses`` counts those that are known.
    """

    key: Key
    labels: Labels
    num_bytes: int
    blob: str | None
    created: float
    used: float
    turn: int
    uses: int


def enter(connection: Connection, record: Record, now: float, extra_bytes: int) -> None:
    """Puts a record that is in its table into the catalogue, or renews its line.

    ``extra_bytes`` is the size of its file.
    """
    key, labels = record.key, record.labels
    connection.execute(
        f"INSERT INTO catalogue ({_COLUMNS}) "
        "SELECT ?, ?, ?, ?, ?, ?, ?, ?, "
        f'? + (SELECT length(value) FROM "{key.kind}" WHERE key = ?), ?, ?, ?, {_NEXT_TURN}, 0 WHERE true '
        "ON CONFLICT (kind, key) DO UPDATE SET plan = excluded.plan, model = excluded.model, "
        "gpu = excluded.gpu, engine = excluded.engine, family = excluded.family, rank = excluded.rank, "
        "bytes = excluded.bytes, blob = excluded.blob, created = excluded.created, used = excluded.used, "
        "turn = excluded.turn",
        (
            *(str(key.kind), key.digest, labels.plan, labels.model, labels.gpu, labels.engine),
            *(labels.family, labels.rank, extra_bytes, key.digest, record.blob, record.created, now),
        ),
    )


_NEXT_TURN = "(SELECT coalesce(max(turn), 0) + 1 FROM catalogue)"


def count_uses(connection: Connection, uses: Mapping[Key, int], now: float) -> None:
    """Notes that records were used, the last of ``uses`` last; those that are gone are passed over."""
    for key, count in uses.items():
        connection.execute(
            f"UPDATE catalogue SET used = ?, uses = uses + ?, turn = {_NEXT_TURN} WHERE kind = ? AND key = ?",
            (now, count, str(key.kind), key.digest),
        )


def remove(connection: Connection, keys: Iterable[Key]) -> None:
    """Removes records with their lines."""
    for key in keys:
        connection.execute(f'DELETE FROM "{key.kind}" WHERE key = ?', (key.digest,))
        forget(connection, key)


def forget(connection: Connection, key: Key) -> None:
    """Removes a record's line, whatever stands in it."""
    connection.execute("DELETE FROM catalogue WHERE kind = ? AND key = ?", (str(key.kind), key.digest))


def summaries(
    connection: Connection,
    *,
    containing: Mapping[str, str] | None = None,
    start: str = "",
    **equal: str | int,
) -> tuple[Summary, ...]:
    """All records whose columns have these values, the last used first.

    The columns ``containing`` have such words in them, in any case, and the key or the plan's digest
    begins with ``start``.
    """
    words = containing or {}
    conditions = [
        *(f"{column} = ?" for column in equal),
        *(f"instr(lower({column}), lower(?)) > 0" for column in words),
        "(substr(key, 1, ?) = ? OR substr(plan, 1, ?) = ?)",
    ]
    rows = connection.select(
        f"SELECT {_COLUMNS} FROM catalogue WHERE {' AND '.join(conditions)} ORDER BY turn DESC",
        (*equal.values(), *words.values(), len(start), start, len(start), start),
    )
    return tuple(_summary(row) for row in rows)


def _summary(row: tuple[Any, ...]) -> Summary:
    kind, key, plan, model, gpu, engine, family, rank, num_bytes, blob, created, used, turn, uses = row
    if kind not in _KINDS or not all(map(isinstance, row, _TYPES)) or not HEX_DIGEST.fullmatch(key):
        raise CacheError(
            "the catalogue is damaged", fault=Fault.CORRUPT, fix="planner cache check --fix makes it anew"
        )
    return Summary(
        key=Key(_KINDS[kind], key),
        labels=Labels(plan=plan, model=model, gpu=gpu, engine=engine, family=family, rank=rank),
        num_bytes=num_bytes,
        blob=blob,
        created=created,
        used=used,
        turn=turn,
        uses=uses,
    )


def stored_bytes(connection: Connection, key: Key) -> int:
    """The size of a record in its table; 0 where there is none."""
    row = connection.select_one(f'SELECT length(value) FROM "{key.kind}" WHERE key = ?', (key.digest,))
    return int(row[0]) if row is not None else 0


def keys_in_tables(connection: Connection) -> set[Key]:
    """All keys that records are stored under, but those that are none."""
    return {
        Key(kind, str(row[0]))
        for kind in Kind
        for row in connection.select(f'SELECT key FROM "{kind}" WHERE NOT ({_NO_KEY})')
    }


def keys_in_catalogue(connection: Connection) -> set[Key]:
    """All keys that the catalogue has, but those that are none."""
    rows = connection.select(f"SELECT kind, key FROM catalogue WHERE NOT ({_STRAY})")
    return {Key(_KINDS[kind], str(key)) for kind, key in rows}


def blobs_in_use(connection: Connection) -> set[str]:
    """The SHA-256 of every file that a record names."""
    return {row[0] for row in connection.select("SELECT DISTINCT blob FROM catalogue WHERE blob IS NOT NULL")}


_NO_KEY = "typeof(key) != 'text' OR length(key) != 64 OR key GLOB '*[^0-9a-f]*'"
_STRAY = f"kind NOT IN ({', '.join(repr(str(kind)) for kind in Kind)}) OR {_NO_KEY}"


def count_strays(connection: Connection) -> int:
    """How many lines and records have no key that there can be."""
    tables = (f'SELECT key FROM "{kind}" WHERE {_NO_KEY}' for kind in Kind)
    rows = " UNION ALL ".join((f"SELECT key FROM catalogue WHERE {_STRAY}", *tables))
    row = connection.select_one(f"SELECT count(*) FROM ({rows})")
    return int(row[0]) if row is not None else 0


def remove_strays(connection: Connection) -> None:
    """Removes the lines and records that have no key that there can be."""
    with connection.transaction():
        connection.execute(f"DELETE FROM catalogue WHERE {_STRAY}")
        for kind in Kind:
            connection.execute(f'DELETE FROM "{kind}" WHERE {_NO_KEY}')
