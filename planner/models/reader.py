"""Typed reading of one Hugging Face ``config.json``, whose values come from strangers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from planner.errors import PlanError

MAX_INTEGER = 1 << 40
"""Largest number that a config may hold: far above any real one, and a bound on arithmetic."""


@frozen
class ConfigReader:
    """One mapping of a config, read key by key; a null value counts as an absent one.

    ``field`` is the deployment's setting that the config came from, ``prefix`` the dotted place
    inside the file. Where several keys are given, the first that is present counts: families
    name the same fact differently.
    """

    facts: Mapping[str, object]
    field: str = "model.config"
    prefix: str = ""

    def error(self, key: str, problem: str) -> PlanError:
        """The error that names ``key`` of this config."""
        return PlanError(f"{self.prefix}{key} {problem}", fields=(self.field,))

    def has(self, key: str) -> bool:
        """Whether ``key`` is present with a value."""
        return self.facts.get(key) is not None

    def nested(self, *keys: str) -> ConfigReader | None:
        """The mapping under the first of ``keys`` that is present.

        Raises:
            PlanError: the value is not a mapping.
        """
        for key in keys:
            value = self.facts.get(key)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise self.error(key, f"is {_shown(value)}; it must be a mapping")
            return ConfigReader(value, self.field, f"{self.prefix}{key}.")
        return None

    def integer(self, *keys: str, minimum: int = 0) -> int | None:
        """The whole number under the first of ``keys`` that is present.

        Raises:
            PlanError: the value is no whole number from ``minimum`` to ``MAX_INTEGER``.
        """
        for key in keys:
            value = self.facts.get(key)
            if value is not None:
                return self._whole(key, value, minimum)
        return None

    def required(self, *keys: str) -> int:
        """As ``integer``, for a positive number that planning cannot do without.

        Raises:
            PlanError: no key is present, or its value is not a positive whole number.
        """
        value = self.integer(*keys, minimum=1)
        if value is None:
            raise self.error(keys[0], "is missing; give the model's own config.json")
        return value

    def largest(self, *keys: str) -> int | None:
        """As ``integer``, for a number that some families give layer by layer: the largest."""
        for key in keys:
            value = self.facts.get(key)
            if isinstance(value, Sequence) and not isinstance(value, str) and value:
                return max(self._whole(key, item, 0) for item in value)
        return self.integer(*keys)

    def text(self, *keys: str) -> str | None:
        """The string under the first of ``keys`` that is present.

        Raises:
            PlanError: the value is not a string.
        """
        for key in keys:
            value = self.facts.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.error(key, f"is {_shown(value)}; it must be a string")
            return value
        return None

    def flag(self, key: str) -> bool | None:
        """The boolean under ``key``.

        Raises:
            PlanError: the value is not true or false.
        """
        value = self.facts.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"is {_shown(value)}; it must be true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """The list of strings under ``key``.

        Raises:
            PlanError: the value is no list, or an item is not a string.
        """
        items = self._items(key)
        if items is None:
            return None
        for item in items:
            if not isinstance(item, str):
                raise self.error(key, f"holds {_shown(item)}; its items must be strings")
        return tuple(str(item) for item in items)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """The list of whole numbers under ``key``.

        Raises:
            PlanError: the value is no list, or an item is no whole number of 0 or more.
        """
        items = self._items(key)
        return None if items is None else tuple(self._whole(key, item, 0) for item in items)

    def _items(self, key: str) -> Sequence[object] | None:
        value = self.facts.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(key, f"is {_shown(value)}; it must be a list")
        return value

    def _whole(self, key: str, value: object, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_INTEGER:
            raise self.error(key, f"is {_shown(value)}; it must be a whole number of at least {minimum}")
        return value


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "a number beyond every real one"
    shown = repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
