"""Carries a cache to and from a folder at a URL: only what is missing moves, and a cut-off transfer goes on.

Nothing that a remote says is believed: sizes are bounded, names are digests, and content counts once its
SHA-256 is right. A reader of the receiving cache finds a capture with all its artifacts, or nothing of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attrs import define, field, frozen

from cache.archive import has_sound, refused, stranger_record
from cache.blobs import Blobs, Unnamed
from cache.captures import CaptureRecordV1
from cache.directory import Access, name_of, unreachable
from cache.errors import CacheError, Fault
from cache.keys import Key
from cache.records import ArtifactRecord, Record
from cache.transfer_index import (
    INDEX,
    MAX_INDEX_BYTES,
    OBJECTS,
    PART_BYTES,
    Index,
    IndexedBlob,
    IndexedRecord,
    index_in,
    part_sizes,
)
from cache.transfer_remote import Remote, locked
from planner.documents.digest import canonical_json

if TYPE_CHECKING:
    from cache.store import PlanCache

__all__ = ["Moved", "export_to", "import_from"]
