"""What all ranks have in common before the first capture, or end with one message.

Every rank tells what it was started with; every rank then finds the same first difference, so that all
of them end with the same words. Stages of a pipeline run layers of their own and are planned for them:
across stages, only the machine and the sizes have to be the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.keys import stable_digest
from executor.distributed.ranks import Ranks
from executor.distributed.wording import listed_ranks, shown
from executor.errors import RanksError
from planner.descriptors import PlanEntry
from planner.documents.plan import Plan

MOST_NAMED = 3
"""Differences that a message tells with their values; of others it gives the number."""

ABSENT = "absent"
"""How a message calls what a rank does not have at all."""


@frozen(kw_only=True)
class Statement:
    """What one rank was started with, as texts by the names that messages use.

    ``own`` are equal on all ranks of pipeline stage ``stage``, ``common`` on all ranks of the job.
    """

    stage: int = 0
    own: Mapping[str, str] = field(factory=dict)
    common: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        environment: EnvironmentFingerprint,
        model: ModelFingerprint,
        *,
        stage: int = 0,
        entries: Mapping[str, Sequence[PlanEntry]] | None = None,
    ) -> Statement:
        """That of a rank that captures ``plan``, or ``entries`` by family where it captures others.

        ``plan`` and ``model`` are those of the rank's own stage.
        """
        graphs = plan.graphs if entries is None else entries
        own = {"plan": stable_digest(plan)}
        for family, listed in graphs.items():
            own[f"graphs.{family}"] = f"{len(listed)} entries"
            own.update((f"graphs.{family}[{index}]", shown(entry)) for index, entry in enumerate(listed))
        own.update((f"model.{name}", text) for name, text in _texts(asdict(model)))
        common = {f"environment.{name}": text for name, text in _texts(asdict(environment))}
        for family, listed in graphs.items():
            common[f"sizes.{family}"] = str(sorted({entry.num_tokens for entry in listed}))
        return cls(stage=stage, own=own, common=common)

    def as_bytes(self) -> bytes:
        """The statement as ranks send it."""
        return json.dumps({"stage": self.stage, "own": dict(self.own), "common": dict(self.common)}).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> Statement:
        """What ``as_bytes`` made."""
        return cls(**json.loads(message))


def _texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", str(item)) for key, item in value.items())
        else:
            yield name, str(value)


@frozen
class Difference:
    """A field that ranks have different values of; ``ranks`` by value, ``ABSENT`` where it is missing."""

    name: str
    ranks: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        values = (f"{value} on {listed_ranks(ranks)}" for value, ranks in self.ranks.items())
        return f"{self.name} is {', '.join(values)}"


def differences(statements: Mapping[int, Statement]) -> list[Difference]:
    """Fields in which the statements, by rank, differ: within each stage, then across stages.

    Of sizes of a family, only stages that have the family are compared: a drafter belongs to one.
    """
    found: list[Difference] = []
    for stage in sorted({statement.stage for statement in statements.values()}):
        parts = {rank: each.own for rank, each in statements.items() if each.stage == stage}
        found.extend(_differences(parts, optional=False))
    return found + list(_differences({rank: each.common for rank, each in statements.items()}, optional=True))


def _differences(parts: Mapping[int, Mapping[str, str]], *, optional: bool) -> Iterator[Difference]:
    names = dict.fromkeys(name for part in parts.values() for name in part)
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, part in parts.items():
            if name in part or not (optional and name.startswith("sizes.")):
                ranks.setdefault(part.get(name, ABSENT), []).append(rank)
        if len(ranks) > 1:
            yield Difference(name, {value: tuple(members) for value, members in ranks.items()})


def refusal(found: Sequence[Difference]) -> str:
    """The one message about ``found``, which is not empty."""
    told = "; ".join(str(difference) for difference in found[:MOST_NAMED])
    more = len(found) - MOST_NAMED
    rest = f"; and {more} more fields differ" if more > 0 else ""
    return (
        f"the ranks were not started alike: {told}{rest}; give all ranks the same plan, program and settings"
    )


def agree_at_start(ranks: Ranks, statement: Statement) -> None:
    """Returns once all ranks have made the same statement; each of them calls this ahead of capture.

    Raises:
        RanksError: they differ, with the same message on every rank; or one does not answer in time.
    """
    message = statement.as_bytes()
    what = "start-up agreement"
    digests = ranks.exchange(hashlib.sha256(message).digest(), what)
    if len(set(digests)) == 1:
        return
    messages = ranks.exchange(message, what)
    statements = (Statement.from_bytes(each) for each in messages)
    found = differences(dict(zip(ranks.members, statements, strict=True)))
    if found:
        raise RanksError(refusal(found))
