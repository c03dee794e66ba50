"""What a cache stores besides captures: plans, what was replayed, and files; each found by its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import evolve, field, frozen

from cache.errors import CacheError, Fault
from cache.keys import HEX_DIGEST, Key, artifact_key, deployment_digest, key_of, rules_version, traffic_key
from cache.tables import Kind
from planner.descriptors import PlanEntry, Prologue
from planner.documents.data import as_data, plain
from planner.documents.deployment import Deployment, Json
from planner.documents.digest import is_edited
from planner.documents.load import load_plan
from planner.documents.plan import Plan
from planner.documents.sources import tree_of
from planner.documents.structure import structure
from planner.documents.tree import NodeError
from planner.errors import DocumentError
from planner.modes import CUDAGraphMode

T = TypeVar("T")
F = TypeVar("F")


@frozen(kw_only=True)
class Labels:
    """What a record is listed and found under. ``plan`` is a digest without its prefix."""

    plan: str = ""
    model: str = ""
    gpu: str = ""
    engine: str = ""
    family: str = ""
    rank: int = 0


class Record(Protocol):
    """Anything that a cache stores. ``blob`` is the SHA-256 of the file that belongs to it."""

    @property
    def key(self) -> Key: ...  # noqa: D102

    @property
    def labels(self) -> Labels: ...  # noqa: D102

    @property
    def blob(self) -> str | None: ...  # noqa: D102

    @property
    def created(self) -> float: ...  # noqa: D102

    def as_json(self) -> Json: ...  # noqa: D102


@frozen(kw_only=True)
class PlanRecord:
    """A compiled plan. ``created`` is in seconds since 1970.

    ``document`` is the plan as JSON has it, ``lora_families`` names those of its families whose
    entries are of a deployment with LoRA adapters, which the document does not say of each entry, and
    ``families`` all families in the plan's order, which a table does not keep.
    """

    deployment: str
    rules: str
    document: Mapping[str, Json]
    lora_families: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    created: float = 0.0

    @classmethod
    def of(cls, plan: Plan, *, created: float = 0.0, rules: str | None = None) -> PlanRecord:
        """The record of a plan as ``compile_plan`` returns it."""
        return cls(
            deployment=deployment_digest(plan.deployment),
            rules=rules or rules_version(),
            document=as_data(plan),
            lora_families=tuple(
                family for family, entries in plan.graphs.items() if entries and entries[0].with_lora
            ),
            families=tuple(dict.fromkeys((*plan.resolved, *plan.graphs))),
            created=created,
        )

    @property
    def key(self) -> Key:
        """By deployment and rules."""
        return key_of(Kind.PLAN, deployment=self.deployment, rules=self.rules)

    @property
    def labels(self) -> Labels:
        """By the plan's own words."""
        deployment = _table(self.document.get("deployment"))
        engine, device = _table(deployment.get("engine")), _table(deployment.get("device"))
        return Labels(
            plan=_hex(str(self.document.get("digest") or "")),
            model=model_label(self.document),
            gpu=str(device.get("name") or ""),
            engine=" ".join(
                str(part) for part in (engine.get("name") or "vllm", engine.get("version")) if part
            ),
        )

    @property
    def blob(self) -> None:
        """Plans have no file."""

    def as_json(self) -> Json:
        """The record as the table has it."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Json) -> PlanRecord:
        """The record in ``data``; its document is not looked at before ``plan`` or ``checked``.

        Raises:
            CacheError: it is none.
        """
        document = _table(data).get("document")
        if not isinstance(document, dict):
            raise CacheError("a record has no plan in it", fault=Fault.ALTERED)
        return evolve(record_of(cls, {**data, "document": {}}), document=document)

    def plan(self, deployment: Deployment) -> Plan:
        """The plan, of the ``deployment`` whose digest the record has.

        Its entries, of which there are many, are read as ``as_data`` wrote them; for a record out of a
        stranger's hands, ``checked`` comes first.

        Raises:
            CacheError: the record is not what ``of`` makes.
        """
        document = dict(self.document)
        graphs = document.pop("graphs", None)
        document.pop("deployment", None)
        try:
            plan = load_plan({**document, "graphs": {}})
            entries = {
                family: tuple(_entry(row, with_lora=family in self.lora_families) for row in rows)
                for family, rows in graphs.items()
            }
        except (DocumentError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(f"{self.key} holds no plan: {error}", fault=Fault.ALTERED) from None
        return evolve(
            plan,
            name=deployment.name,
            deployment=deployment,
            resolved=_in_order(plan.resolved, self.families),
            graphs=_in_order(entries, self.families),
        )

    def checked(self) -> None:
        """Makes sure that the document is a plan, and the plan of its deployment.

        Raises:
            CacheError: it is not.
        """
        try:
            plan = load_plan(self.document)
        except DocumentError as error:
            raise CacheError(f"{self.key} holds no plan: {error}", fault=Fault.ALTERED) from None
        made = PlanRecord.of(plan, created=self.created, rules=self.rules)
        in_order = set(self.families) in ({*made.families}, set())
        same = in_order and evolve(made, families=self.families) == self
        if not same or is_edited(plan) or self.plan(plan.deployment) != plan:
            raise CacheError(f"{self.key} holds another plan than it says", fault=Fault.ALTERED)


@frozen(kw_only=True)
class EntryCount:
    """How often one entry was replayed."""

    entry: PlanEntry
    count: int = field(metadata={"minimum": 0})


@frozen(kw_only=True)
class TrafficRecord:
    """How often each entry of a plan's family was replayed, and how many batches had none.

    ``created`` and ``updated`` are in seconds since 1970.
    """

    plan: str
    family: str
    counts: tuple[EntryCount, ...] = ()
    eager: int = field(default=0, metadata={"minimum": 0})
    model_name: str = ""
    created: float = 0.0
    updated: float = 0.0

    @property
    def key(self) -> Key:
        """By plan and family."""
        return traffic_key(self.plan, self.family)

    @property
    def labels(self) -> Labels:
        """By plan and family."""
        return Labels(plan=_hex(self.plan), model=self.model_name, family=self.family)

    @property
    def blob(self) -> None:
        """Traffic has no file."""

    def as_json(self) -> Json:
        """The record as the table has it."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Json) -> TrafficRecord:
        """The record in ``data``.

        Raises:
            CacheError: it is none.
        """
        return record_of(cls, data)

    def plus(self, counts: Mapping[PlanEntry, int], eager: int, now: float) -> TrafficRecord:
        """This record with more batches added up."""
        total = {row.entry: row.count for row in self.counts}
        for entry, count in counts.items():
            total[entry] = total.get(entry, 0) + count
        rows = tuple(EntryCount(entry=entry, count=count) for entry, count in total.items())
        return evolve(self, counts=rows, eager=self.eager + eager, updated=now)


@frozen(kw_only=True)
class ArtifactRecord:
    """A large file that belongs to a capture: its content's SHA-256 and its size in bytes.

    ``capture`` is the digest of the capture's key.
    """

    capture: str
    name: str
    sha256: str
    num_bytes: int = field(metadata={"minimum": 0})
    plan: str = ""
    model_name: str = ""
    created: float = 0.0

    @property
    def key(self) -> Key:
        """By the capture's key and the name."""
        return artifact_key(Key(Kind.CAPTURE, self.capture), self.name)

    @property
    def labels(self) -> Labels:
        """By plan and model; the name stands in the place of the family."""
        return Labels(plan=_hex(self.plan), model=self.model_name, family=self.name)

    @property
    def blob(self) -> str:
        """The file's name."""
        return self.sha256

    def as_json(self) -> Json:
        """The record as the table has it."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Json) -> ArtifactRecord:
        """The record in ``data``.

        Raises:
            CacheError: it is none.
        """
        record = record_of(cls, data)
        if HEX_DIGEST.fullmatch(record.sha256) is None:
            raise CacheError("a record names no SHA-256 of its file", fault=Fault.ALTERED)
        return record


def record_of(cls: type[T], data: Json) -> T:
    """``data`` as a record of the class ``cls``, every key and type checked.

    Raises:
        CacheError: it is none.
    """
    try:
        return structure(tree_of(data), cls)
    except NodeError as error:
        reason = error.in_document(None)
        raise CacheError(f"a record is no {cls.__name__}: {reason}", fault=Fault.ALTERED) from None


def model_label(document: Mapping[str, Json]) -> str:
    """How the model of a plan or deployment is called: its name, and its architecture."""
    deployment = _table(document.get("deployment", document))
    config = _table(_table(deployment.get("model")).get("config"))
    architectures = config.get("architectures")
    names = [architectures[0]] if isinstance(architectures, list) and architectures else []
    return " ".join(str(part) for part in (document.get("name") or deployment.get("name"), *names) if part)


def _in_order(families: Mapping[str, F], order: Sequence[str]) -> dict[str, F]:
    """``families`` by ``order``, and behind them those that it does not name."""
    return {name: families[name] for name in dict.fromkeys((*order, *families)) if name in families}


def _entry(row: Mapping[str, Json], *, with_lora: bool) -> PlanEntry:
    prologue = row.get("prologue")
    return PlanEntry(
        CUDAGraphMode[row["mode"]],
        row["num_tokens"],
        row.get("num_reqs"),
        row.get("uniform_token_count"),
        row.get("max_query_len"),
        row.get("num_active_loras", 0),
        row.get("num_ubatches", 1),
        None if prologue is None else Prologue(prologue["kind"], prologue["num_context_tokens"]),
        with_lora=with_lora,
    )


def _table(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
