"""Tables: JSON that proves itself, and nothing that would be executed."""

from __future__ import annotations

import json
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import tables
from cache.directory import DATABASE
from cache.errors import CacheError, Fault
from cache.store import PlanCache
from cache.tables import Kind, decoded, encoded
from tests.cache import samples

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_what_is_stored_comes_back(value: Any) -> None:
    text = encoded(value)
    assert decoded(text) == value
    assert json.loads(text)[1] == value


@given(json_values, st.data())
def test_no_changed_character_goes_unnoticed(value: Any, data: st.DataObject) -> None:
    text = encoded(value)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda character: character != text[place]))
    with pytest.raises(CacheError) as caught:
        decoded(text[:place] + other + text[place + 1 :])
    assert caught.value.fault is Fault.ALTERED


@pytest.mark.parametrize("stored", ["", "x", "[]", '["', '["",]', "null", 7, 7.5, None, b"", b"\x80\x04N."])
def test_anything_else_is_refused(stored: object) -> None:
    with pytest.raises(CacheError) as caught:
        decoded(stored)
    assert caught.value.fault is Fault.ALTERED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, {"a": b"bytes"}])
def test_what_json_does_not_have_is_not_stored(value: Any) -> None:
    with pytest.raises(CacheError, match="cannot be stored as JSON"):
        encoded(value)


def test_what_is_nested_without_an_end_is_not_stored() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CacheError, match="cannot be stored as JSON"):
        encoded(endless)


def test_a_huge_record_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_RECORD_BYTES", 10)
    with pytest.raises(CacheError, match="larger than"):
        encoded("x" * 20)


class Bomb:
    """Does something as soon as it is unpickled."""

    exploded = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Bomb, "exploded", True))


@pytest.mark.parametrize("as_text", [False, True])
def test_a_pickle_in_a_table_is_never_loaded(cache: PlanCache, directory: Path, as_text: bool) -> None:
    key = cache.put_plan(samples.plan())
    planted: Any = pickle.dumps(Bomb(), protocol=0)
    if as_text:
        planted = planted.decode("latin-1")
    with sqlite3.connect(directory / DATABASE) as other:
        other.execute("UPDATE plans SET value = ?", (planted,))
    other.close()
    with pytest.raises(CacheError) as caught:
        cache.get(key)
    assert caught.value.fault is Fault.ALTERED
    assert str(key) in str(caught.value)
    with pytest.raises(CacheError):
        list(cache.tables[Kind.PLAN].values())
    assert not Bomb.exploded
    assert [problem.where for problem in cache.check(fix=True).problems] == [str(key)]
    assert cache.check().problems == ()


def test_a_table_is_the_dictionary_that_sqlitedict_makes_of_it(cache: PlanCache) -> None:
    table = cache.tables[Kind.TRAFFIC]
    table["a"] = {"x": 1}
    table.update({"b": {"x": 2}})
    assert (dict(table), len(table), "a" in table, bool(table)) == (
        {"a": {"x": 1}, "b": {"x": 2}},
        2,
        True,
        True,
    )
    del table["a"]
    with pytest.raises(KeyError):
        table["a"]
    table.clear()
    table.close()
    assert cache.list() == ()


def test_a_table_has_no_thread_of_its_own(cache: PlanCache) -> None:
    import threading

    cache.put_plan(samples.plan())
    assert not [thread for thread in threading.enumerate() if "Sqlite" in type(thread).__name__]


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("PRAGMA user_version=2", Fault.NEWER),
        ("PRAGMA application_id=1", Fault.FOREIGN),
        ("PRAGMA user_version=0", Fault.FOREIGN),
    ],
)
def test_another_programs_or_a_later_database_is_left_alone(
    cache: PlanCache, directory: Path, statement: str, fault: Fault
) -> None:
    key = cache.put_plan(samples.plan())
    cache.close()
    other = sqlite3.connect(directory / DATABASE)
    other.execute(statement)
    other.commit()
    other.close()
    before = (directory / DATABASE).read_bytes()
    with pytest.raises(CacheError, match="name another directory") as caught:
        cache.get(key)
    assert caught.value.fault is fault
    with pytest.raises(CacheError):
        PlanCache(directory)
    assert (directory / DATABASE).read_bytes() == before


@pytest.mark.parametrize("code", [0xD800, 0xDC80, 0xDFFF])
def test_half_a_character_is_an_altered_record(code: int) -> None:
    text = encoded(["abc"])
    with pytest.raises(CacheError) as caught:
        decoded(text.replace("b", chr(code)))
    assert caught.value.fault is Fault.ALTERED
