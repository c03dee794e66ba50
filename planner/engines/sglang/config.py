"""SGLang's graph settings of each phase: from flags and JSON to one config, and what is locked.

Each key that the user gives is locked, which protects it from some of the later changes. The order
of the sources, from the weakest, is: defaults, the switches that turn graphs off, the flags of a
phase, the JSON config; each key is taken by itself.
Source: SGLang 0.5.23, parsing of its CUDA-graph config (rules 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from planner.describe import range_fault
from planner.descriptors import MAX_GRAPH_TOKENS
from planner.documents.deployment import Json
from planner.documents.engine_sections import SglangSection
from planner.documents.plan import Decision
from planner.errors import PlanError

DECODE = "decode"
PREFILL = "prefill"
FULL = "full"
BREAKABLE = "breakable"
DISABLED = "disabled"

CONFIG_FIELD = "sglang.cuda_graph_config"

Given: TypeAlias = tuple[str, str, Json, str]
"""Phase, key, value, and the setting that says so."""


@frozen(kw_only=True)
class Phase:
    """The settings of one phase; ``None`` where neither the user nor a default has filled them yet.

    ``bs`` and ``max_bs`` count requests in the decode phase, tokens in the prefill phase.
    """

    backend: str
    max_bs: int | None = None
    bs: tuple[int, ...] | None = None
    max_context_size: int | None = None
    full_prefill_max_req: int | None = None
    full_prefill_prefix_chunk_tokens: int | None = None
    max_seq_len: int | None = None


@frozen(kw_only=True)
class GraphConfig:
    """Both phases, the keys that the user locked with the setting of each, and what was changed."""

    decode: Phase
    prefill: Phase
    locked: Mapping[tuple[str, str], str] = field(factory=dict)
    changes: tuple[tuple[str, Decision], ...] = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was changed; of a phase without graphs only that it has none."""
        return tuple(
            decision
            for phase, decision in self.changes
            if self.phase(phase).backend != DISABLED or decision.became == DISABLED
        )

    def phase(self, name: str) -> Phase:
        """The phase of that name."""
        return self.decode if name == DECODE else self.prefill

    def is_locked(self, phase: str, key: str) -> bool:
        """Whether the user gave this key."""
        return (phase, key) in self.locked

    def path(self, phase: str, key: str) -> str:
        """The setting that a key was given by, or the one that would give it."""
        flag = key in ("backend", "max_bs", "bs")
        own = f"sglang.cuda_graph_{key}_{phase}" if flag else f"{CONFIG_FIELD}.{phase}.{key}"
        return self.locked.get((phase, key), own)

    def changed(self, phase: str, rule: str, because: str, **values: Any) -> GraphConfig:
        """The config with other values of ``phase``, each that really differs as a decision.

        A list that nobody asked for replaces the one before it without a trace.
        """
        before = self.phase(phase)
        changes = tuple(
            (
                phase,
                Decision(
                    path=self.path(phase, key),
                    asked=_plain(getattr(before, key)) if self.is_locked(phase, key) else None,
                    became=_plain(value),
                    rule=rule,
                    because=because,
                ),
            )
            for key, value in values.items()
            if getattr(before, key) != value
        )
        listed = {change.path for _, change in changes if isinstance(change.became, list)}
        kept = (one for one in self.changes if one[1].asked is not None or one[1].path not in listed)
        after, changes = evolve(before, **values), (*kept, *changes)
        if phase == DECODE:
            return evolve(self, decode=after, changes=changes)
        return evolve(self, prefill=after, changes=changes)

    def without(self, phase: str, rule: str, because: str) -> GraphConfig:
        """The config with the graphs of ``phase`` turned off."""
        return self.changed(phase, rule, because, backend=DISABLED)


def graph_config(section: SglangSection) -> GraphConfig:
    """The config that the user's settings ask for, on a CUDA device.

    Raises:
        PlanError: the JSON config has an unknown key or a value of another type, or one setting is
            given in both of its spellings.
    """
    phases: dict[str, dict[str, Any]] = {DECODE: {"backend": FULL}, PREFILL: {"backend": BREAKABLE}}
    locked: dict[tuple[str, str], str] = {}
    for phase, key, value, path in (*_switches(section), *_flags(section), *_json(section)):
        phases[phase][key] = value
        locked[phase, key] = path
    for name, default in ((DECODE, FULL), (PREFILL, BREAKABLE)):
        if phases[name]["backend"] is None:
            # A null locks the key, and the default fills the value.
            phases[name]["backend"] = default
    return GraphConfig(decode=Phase(**phases[DECODE]), prefill=Phase(**phases[PREFILL]), locked=locked)


def _switches(section: SglangSection) -> Iterator[Given]:
    for name, phases in (
        ("disable_cuda_graph", (DECODE, PREFILL)),
        ("disable_prefill_cuda_graph", (PREFILL,)),
        ("disable_decode_cuda_graph", (DECODE,)),
    ):
        if getattr(section, name):
            for phase in phases:
                yield phase, "backend", DISABLED, f"sglang.{name}"


def _flags(section: SglangSection) -> Iterator[Given]:
    given = (
        (DECODE, "backend", ("cuda_graph_backend_decode",)),
        (PREFILL, "backend", ("cuda_graph_backend_prefill",)),
        (DECODE, "max_bs", ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")),
        (PREFILL, "max_bs", ("cuda_graph_max_bs_prefill",)),
        (PREFILL, "max_seq_len", ("cuda_graph_max_seq_len_prefill",)),
        (DECODE, "bs", ("cuda_graph_bs_decode", "cuda_graph_bs")),
        (PREFILL, "bs", ("cuda_graph_bs_prefill",)),
        (PREFILL, "max_context_size", ("cuda_graph_prefill_max_context",)),
    )
    for phase, key, names in given:
        spelt = [name for name in names if getattr(section, name) is not None]
        if len(spelt) > 1:
            raise PlanError(
                "both spellings of one setting are given; drop the older one",
                fields=tuple(f"sglang.{name}" for name in spelt),
            )
        for name in spelt:
            yield phase, key, getattr(section, name), f"sglang.{name}"


def _json(section: SglangSection) -> Iterator[Given]:
    for phase, keys in (section.cuda_graph_config or {}).items():
        path = f"{CONFIG_FIELD}.{phase}"
        if phase not in _KEYS:
            raise PlanError(f"{phase!r} is no phase; those are {', '.join(_KEYS)}", fields=(path,))
        if not isinstance(keys, Mapping):
            raise PlanError("expected a mapping of keys to values", fields=(path,))
        for key, value in keys.items():
            if key not in _KEYS[phase]:
                known = ", ".join(_KEYS[phase])
                raise PlanError(f"{key!r} is no key of this phase; those are {known}", fields=(path,))
            fault = None if value is None else _KEYS[phase][key](value)
            if fault is not None:
                raise PlanError(fault, fields=(f"{path}.{key}",))
            yield phase, key, tuple(value) if isinstance(value, list | tuple) else value, f"{path}.{key}"


def _backend_fault(value: Json) -> str | None:
    known = (FULL, BREAKABLE, DISABLED)
    return None if value in known else f"{str(value)!r} is no backend; those are {', '.join(known)}"


def _integer_fault(value: Json, least: int = 1) -> str | None:
    if type(value) is not int:
        return "expected a whole number"
    return range_fault(value, least, MAX_GRAPH_TOKENS)


def _limit_fault(value: Json) -> str | None:
    return _integer_fault(value, -1)


def _sizes_fault(value: Json) -> str | None:
    if not isinstance(value, list | tuple):
        return "expected a list of whole numbers"
    return next((fault for item in value if (fault := _integer_fault(item))), None)


_DECODE_KEYS: Mapping[str, Callable[[Json], str | None]] = {
    "backend": _backend_fault,
    "max_bs": _limit_fault,
    "bs": _sizes_fault,
}
_KEYS: Mapping[str, Mapping[str, Callable[[Json], str | None]]] = MappingProxyType(
    {
        DECODE: _DECODE_KEYS,
        PREFILL: {
            **_DECODE_KEYS,
            "max_context_size": _integer_fault,
            "full_prefill_max_req": _integer_fault,
            "full_prefill_prefix_chunk_tokens": _integer_fault,
            "max_seq_len": _integer_fault,
        },
    }
)


def _plain(value: Any) -> Json:
    return list(value) if isinstance(value, tuple) else value
