"""Fingerprints: under which circumstances a capture was made, and whether these are the same.

An allow-list of named fields. What a graph does not depend on (ports, paths, host names, time) is in
none of them, or no restart would ever find its record (fault 85); what it does depend on is, each with
a test that it counts (fault 87).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, fields, frozen

from cache.keys import stable
from planner.documents.data import plain
from planner.documents.deployment import Deployment, Json
from planner.documents.digest import canonical_json

UNKNOWN = "unknown"
"""A value that could not be found out: equal to nothing, not even to itself."""

NONE = "none"
"""A definite value: there is no such thing here."""

PP_PARTITION = "VLLM_PP_LAYER_PARTITION"
"""The layers of each pipeline stage, where they are not shared out evenly. Source: vLLM 0.33."""

_QUANTIZATION = ("quantization_config", "compression_config", "quantization")


@frozen(kw_only=True)
class EnvironmentFingerprint:
    """What of the machine and its software decides which kernels a capture records.

    ``switches`` are settings by name, of the process environment (``environment.SWITCHES``) and of
    PyTorch (``torch.…``); those that are not set are not in it.
    """

    torch: str = UNKNOWN
    cuda: str = UNKNOWN
    cublas: str = UNKNOWN
    cudnn: str = UNKNOWN
    driver: str = UNKNOWN
    gpu: str = UNKNOWN
    compute_capability: str = UNKNOWN
    num_sms: str = UNKNOWN
    triton: str = UNKNOWN
    python: str = UNKNOWN
    platform: str = UNKNOWN
    switches: Mapping[str, str] = field(factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 over all fields."""
        return _digest(self)

    @classmethod
    def current(cls, device: Any = None) -> EnvironmentFingerprint:
        """That of this process on ``device``, by default its current one. Imports torch."""
        from cache.environment import current_environment

        return current_environment(device)


@frozen(kw_only=True)
class ModelFingerprint:
    """What of the model and of how it is run decides what a capture records.

    ``config`` is the SHA-256 of the model's config. ``parallel`` and ``speculative`` hold each setting
    of those sections as JSON text. ``pipeline_partition`` is the layers of each pipeline stage, and
    ``code`` the digest of the code that builds the forward (``keys.code_digest``).
    """

    config: str = UNKNOWN
    dtype: str = UNKNOWN
    kv_cache_dtype: str = UNKNOWN
    quantization: str = UNKNOWN
    pipeline_partition: str = UNKNOWN
    code: str = UNKNOWN
    parallel: Mapping[str, str] = field(factory=dict)
    speculative: Mapping[str, str] = field(factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 over all fields."""
        return _digest(self)

    @classmethod
    def of(cls, deployment: Deployment, *, code: str, **known: str) -> ModelFingerprint:
        """That of ``deployment``; ``known`` are fields that the caller knows better, such as ``dtype``."""
        described = stable(deployment)
        model = described.model
        facts = model.config.facts if model.config is not None else {}
        found = {
            "config": model.config.sha256 if model.config is not None else UNKNOWN,
            "dtype": model.dtype or "auto",
            "kv_cache_dtype": model.kv_cache_dtype or "auto",
            "quantization": _quantization(facts),
            "pipeline_partition": deployment.engine.env.get(PP_PARTITION, "even"),
        }
        draft = described.speculative
        return cls(
            code=code,
            parallel=_texts(plain(described.parallel)),
            speculative={} if draft is None else _texts({"method": None, **plain(draft)}),
            **{**found, **known},
        )


@frozen
class Mismatch:
    """A field in which two fingerprints differ.

    It is hard where both values are definite, and soft where one is not known: the record is used in
    neither case, but a record with soft ones gives way to a new one.
    """

    field: str
    saved: str
    current: str

    @property
    def is_hard(self) -> bool:
        """Whether both values are known."""
        return UNKNOWN not in (self.saved, self.current)

    def __str__(self) -> str:
        return f"{self.field}: saved {self.saved}, current {self.current}"


Fingerprint = EnvironmentFingerprint | ModelFingerprint


def mismatches(saved: Fingerprint, current: Fingerprint) -> tuple[Mismatch, ...]:
    """The fields in which a saved fingerprint differs from the current one, of the same class."""
    return tuple(
        Mismatch(name, before, after)
        for name, before, after in _pairs(saved, current)
        if before != after or before == UNKNOWN
    )


def _pairs(saved: Fingerprint, current: Fingerprint) -> Iterator[tuple[str, str, str]]:
    for attribute in fields(type(saved)):
        before, after = getattr(saved, attribute.name), getattr(current, attribute.name)
        if isinstance(before, Mapping):
            for name in sorted({*before, *after}):
                yield f"{attribute.name}.{name}", before.get(name, NONE), after.get(name, NONE)
        else:
            yield attribute.name, before, after


def _digest(fingerprint: Fingerprint) -> str:
    values = {attribute.name: getattr(fingerprint, attribute.name) for attribute in fields(type(fingerprint))}
    return hashlib.sha256(canonical_json({name: _plain(value) for name, value in values.items()})).hexdigest()


def _plain(value: str | Mapping[str, str]) -> Json:
    return value if isinstance(value, str) else dict(value)


def _texts(settings: Mapping[str, Json]) -> dict[str, str]:
    return {name: _text(value) for name, value in settings.items()}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else canonical_json(value).decode()


def _quantization(facts: Mapping[str, Json]) -> str:
    for name in _QUANTIZATION:
        if facts.get(name):
            return _text(facts[name])
    return NONE
