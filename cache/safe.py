"""The cache as a server has it: what it cannot give is done again, and no fault of it reaches anybody.

Whatever goes wrong, a call returns what an empty cache would. The first fault is told in one line;
later ones are not. A database that cannot be used is set aside, and a new one begun. After a wait that
was too long, a full disk, or anything unforeseen, the cache is left alone for the rest of the process.

What is read is verified, and nothing else: damage in other places of the database is no matter of this
start, and a check of the whole at each opening would have a start lose the records that are sound, since
a damaged database is set aside. ``PlanCache.check`` finds it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cache.captures import CaptureLookup, CaptureRecordV1
from cache.directory import DATABASE, Access, directory_of, identity, set_aside
from cache.errors import OF_THE_DATABASE, CacheError, Fault
from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.keys import Key, artifact_key, capture_key, plan_key, traffic_key
from cache.records import TrafficRecord
from cache.store import Content, PlanCache
from cache.tables import Kind
from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import Plan
from planner.errors import clear_line

T = TypeVar("T")

LONGEST_WAIT = 2.0
"""Seconds that a call may take; only one ever does, since the cache is left alone after it."""

OF_ONE_RECORD = frozenset({Fault.ALTERED, Fault.MISSING, Fault.INVALID})


def log_warning(message: str) -> None:
    """Tells of a fault through ``logging``, which prints it where nobody set up anything else."""
    logging.getLogger("graphplan.cache").warning("%s", message)


class SafeCache:
    """``PlanCache`` for serving: never raises, waits a bounded time once, warns once.

    ``cold`` leaves the cache alone altogether. ``warn`` gets the one warning as a line of text.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        cold: bool = False,
        timeout: float = LONGEST_WAIT,
        warn: Callable[[str], None] = log_warning,
    ) -> None:
        self._warn = warn
        self._timeout = timeout
        self._has_warned = False
        self._cache: PlanCache | None = None
        self._directory: Path | None = None
        self._identity: tuple[int, int] | None = None
        self._fault = "cold" if cold else ""
        self.lookups: Counter[tuple[Kind, str]] = Counter()
        """Look-ups of plans, captures and artifacts, by why nothing was found; an empty reason is a hit.

        The reasons are ``absent``, ``cold`` for a cache that nobody wants used, the value of the ``Fault``
        that stopped this look-up or the cache, ``error`` for anything else that did, and for captures the
        first field of the circumstances that differs."""
        if cold:
            return
        try:
            self._directory = directory_of(directory)
            self._open(self._directory)
        except CacheError as error:
            self._recover(error, _nothing)
        except Exception as error:  # noqa: BLE001 - a cache never stops a start
            self._give_up(error)

    @property
    def directory(self) -> Path | None:
        """Where the cache lies; None while it is left alone."""
        return None if self._cache is None else self._directory

    @property
    def is_cold(self) -> bool:
        """Whether the cache is left alone."""
        return self._cache is None

    def close(self) -> None:
        """Notes what was used and closes the database; later calls find nothing."""
        cache, self._cache = self._cache, None
        self._fault = "cold"
        if cache is not None:
            with suppress(Exception):
                cache.close()

    def get_plan(self, deployment: Deployment) -> Plan | None:
        """The plan that ``compile_plan`` returns for ``deployment``, if it is stored."""
        found = self._attempt(lambda cache: cache.get_plan(deployment), None, lambda: (plan_key(deployment),))
        self._count(Kind.PLAN, "absent" if found is None else "")
        return found

    def put_plan(self, plan: Plan) -> bool:
        """Stores a plan as ``compile_plan`` returned it; whether it is stored."""
        return self._store(lambda cache: cache.put_plan(plan))

    def find_capture(
        self,
        plan: str,
        environment: EnvironmentFingerprint,
        model: ModelFingerprint,
        family: str,
        rank: int = 0,
    ) -> CaptureLookup:
        """The capture of a plan's family under these circumstances, or what speaks against it."""
        found = self._attempt(
            lambda cache: cache.find_capture(plan, environment, model, family, rank),
            CaptureLookup(),
            lambda: (capture_key(plan, environment.digest, model.digest, family, rank),),
        )
        differing = found.mismatches[0].field.partition(".")[0] if found.mismatches else "absent"
        self._count(Kind.CAPTURE, differing if found.record is None else "")
        return found

    def put_capture(self, record: CaptureRecordV1) -> bool:
        """Stores a capture; whether it is stored."""
        return self._store(lambda cache: cache.put_capture(record))

    def add_usage(
        self, plan: str, family: str, counts: Mapping[PlanEntry, int], *, eager: int = 0, model_name: str = ""
    ) -> bool:
        """Adds up how often entries were replayed; whether that is stored."""
        return self._store(
            lambda cache: cache.add_usage(plan, family, counts, eager=eager, model_name=model_name)
        )

    def usage(self, plan: str, family: str) -> TrafficRecord | None:
        """What was replayed of a plan's family, if anything is known."""
        return self._attempt(
            lambda cache: cache.usage(plan, family), None, lambda: (traffic_key(plan, family),)
        )

    def put_artifact(self, capture: CaptureRecordV1, name: str, content: Content) -> bool:
        """Stores a file that belongs to a capture; whether it is stored."""
        return self._store(lambda cache: cache.put_artifact(capture, name, content))

    def get_artifact(self, capture: Key, name: str) -> bytes | None:
        """The file ``name`` of a capture, verified, if it is there."""
        found = self._attempt(
            lambda cache: cache.get_artifact(capture, name), None, lambda: (artifact_key(capture, name),)
        )
        self._count(Kind.ARTIFACT, "absent" if found is None else "")
        return found

    def _count(self, kind: Kind, reason: str) -> None:
        self.lookups[kind, self._fault or reason] += 1

    def _store(self, act: Callable[[PlanCache], object]) -> bool:
        """Does ``act`` where the cache can be written; a baked one cannot, and that is no fault."""
        if self._cache is not None and self._cache.access is not Access.WRITE:
            return False

        def done(cache: PlanCache) -> bool:
            act(cache)
            return True

        return self._attempt(done, False, _nothing)

    def _attempt(
        self, act: Callable[[PlanCache], T], otherwise: T, concerned: Callable[[], tuple[Key, ...]]
    ) -> T:
        """What ``act`` returns, or ``otherwise``; ``concerned`` names the records that it reads."""
        cache = self._cache
        if cache is None:
            return otherwise
        self._fault = ""
        try:
            return act(cache)
        except CacheError as error:
            self._recover(error, concerned)
        except Exception as error:  # noqa: BLE001 - a cache never stops a start
            self._give_up(error)
        return otherwise

    def _recover(self, error: CacheError, concerned: Callable[[], tuple[Key, ...]]) -> None:
        """Does what lets later calls work, where that is possible."""
        cache, self._cache = self._cache, None
        self._fault = error.fault.value
        try:
            if error.fault in OF_ONE_RECORD and cache is not None:
                self._cache = cache
                self._tell(f"{_said(error)}; this part is done again")
                if (keys := concerned()) and cache.access is Access.WRITE:
                    cache.remove(keys)
            elif error.fault in OF_THE_DATABASE and self._directory is not None:
                if cache is not None:
                    cache.connection.close()
                self._begin_anew(error, self._directory)
            else:
                self._give_up(error)
        except Exception as second:  # noqa: BLE001 - a cache never stops a start
            self._give_up(second)

    def _begin_anew(self, error: CacheError, directory: Path) -> None:
        aside = set_aside(directory, found=self._identity)
        name = "" if aside is None else f"; set aside as {aside.name}, and a new one begun"
        self._tell(f"{_said(error)}{name}")
        self._open(directory)

    def _open(self, directory: Path) -> None:
        self._identity = identity(directory / DATABASE)
        self._cache = PlanCache(directory, timeout=self._timeout)
        self._identity = self._cache.connection.identity

    def _give_up(self, error: Exception) -> None:
        self._cache = None
        self._fault = error.fault.value if isinstance(error, CacheError) else "error"
        self._tell(f"{_said(error)}; going on without the cache")

    def _tell(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            with suppress(Exception):
                self._warn(clear_line(f"cache: {message}"))


def _nothing() -> tuple[Key, ...]:
    return ()


def _said(error: Exception) -> str:
    """What is wrong, without what a person could do: this has been done already."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}the system refuses: {error.strerror}"
    if isinstance(error, CacheError):
        return f"{error.path}: {error.message}" if error.path else error.message
    return f"{type(error).__name__}: {error}"
