"""What can be wrong with a cache: one class, whose ``fault`` says which kind it is."""

from __future__ import annotations

from enum import Enum

from planner.errors import GraphplanError


class Fault(Enum):
    """Kinds of faults; callers decide by them, and by them alone."""

    LOCKED = "locked"
    """Another process held the database for longer than the time limit, or the work took longer."""
    FULL = "full"
    """Nothing more can be written: a full disk, a quota, a limit on the size of files."""
    READ_ONLY = "read-only"
    """The cache can be read and not written, or its state needs a write before it can be read."""
    UNREACHABLE = "unreachable"
    """The system refuses an operation: no permission, no such folder, a failing disk."""
    UNSAFE = "unsafe"
    """The directory is a link, another user's, or writable for everybody."""
    CORRUPT = "corrupt"
    """The database cannot be read."""
    FOREIGN = "foreign"
    """What stands in the cache's place is something else."""
    NEWER = "newer"
    """A later version of this program wrote the database."""
    ALTERED = "altered"
    """A record or an artifact is not what was put."""
    MISSING = "missing"
    """An artifact or a cache that should be there is not."""
    INVALID = "invalid"
    """Something that cannot be stored, or an archive that cannot be imported."""


OF_THE_MACHINE = frozenset({Fault.LOCKED, Fault.FULL, Fault.READ_ONLY, Fault.UNREACHABLE})
"""Faults of the surroundings: what is stored is sound."""

OF_THE_DATABASE = frozenset({Fault.CORRUPT, Fault.FOREIGN, Fault.NEWER})
"""Faults that stay until the database is set aside."""


class CacheError(GraphplanError):
    """A cache that cannot do what it was asked for; ``fault`` is the kind, ``fix`` what a person can do."""

    def __init__(
        self, message: str, *, fault: Fault, path: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(f"{message}; {fix}" if fix else message)
        self.message = message
        self.fault = fault
        self.path = path
        self.exit_code = 3 if fault in OF_THE_MACHINE else 2
