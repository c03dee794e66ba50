"""Dispatch by the rules of the V1 runner: pad to a capture size, then look for exactly that key.

The table is computed once from the entries. Unlike V2's, a look-up pads first, by one table for all
graphs, and an entry serves only the batch whose padded descriptor is its own key.
Source: vLLM 0.33, padding table, keys and dispatch of the V1 dispatcher (rules 4.1 to 4.5).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping

from attrs import frozen

from planner.descriptors import BatchDescriptor, PlanEntry
from planner.documents.plan import Microbatching, Plan, ResolvedFamily
from planner.errors import BatchError
from planner.modes import CUDAGraphMode
from planner.rules.rounding import padding_table

_RUNTIME_MODES = CUDAGraphMode.valid_runtime_modes()
_NONE, _PIECEWISE, _FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


@frozen
class _Keys:
    """The entries whose key is one padded size with one LoRA case."""

    decode: PlanEntry | None = None
    mixed: PlanEntry | None = None
    pieces: PlanEntry | None = None


_NO_KEYS = _Keys()


@frozen(kw_only=True)
class V1Family:
    """What dispatch needs of a family beside its entries; tokens and requests of one rank.

    ``sizes`` ascend and may be larger than any entry. ``specialize_active_lora`` says whether a
    number of active adapters is rounded to the nearest captured one, or always to the largest.
    """

    mode: CUDAGraphMode
    sizes: tuple[int, ...]
    max_num_seqs: int
    decode_query_len: int = 1
    lora_cases: tuple[int, ...] = (0,)
    specialize_active_lora: bool = False
    microbatching: Microbatching | None = None


class V1DispatchTable:
    """Answers dispatch for one family of a plan, by the rules of the V1 runner.

    ``entries`` are in capture order.
    """

    def __init__(self, entries: Iterable[PlanEntry], family: V1Family) -> None:
        self.entries = tuple(entries)
        self.family = family
        self.lora_cases = family.lora_cases
        self.microbatching = family.microbatching
        self.decode_query_len = family.decode_query_len
        self._captured = sorted(case for case in family.lora_cases if case > 0)
        self._keys = _keys_by_size(self.entries, family)
        self._ragged = frozenset(size for size in family.sizes if size % family.decode_query_len)
        self._maximum = family.sizes[-1] if family.mode and family.sizes else -1
        # No key lies above the largest entry, so the table need not reach further than that.
        largest = max((entry.num_tokens for entry in self.entries), default=0)
        self._padded = padding_table([size for size in family.sizes if size <= largest])

    def captured_case(self, num_active_loras: int) -> int:
        """The LoRA case that ``num_active_loras`` adapters run in, itself where there is none."""
        if num_active_loras <= 0 or not self._captured:
            return num_active_loras
        if not self.family.specialize_active_lora:
            return self._captured[-1]
        index = bisect_left(self._captured, num_active_loras)
        return self._captured[index] if index < len(self._captured) else num_active_loras

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        num_active_loras: int = 0,
        has_lora: bool | None = None,
        valid_modes: Collection[CUDAGraphMode] | None = None,
        invalid_modes: Collection[CUDAGraphMode] | None = None,
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """The runtime mode and the key of the graph that serves a batch, or NONE and it unpadded.

        ``uniform_decode`` says that every request has the decode query length. ``has_lora`` is by
        default whether any adapter is active. ``valid_modes`` (empty: all) and ``invalid_modes``
        restrict the answer.

        Raises:
            BatchError: no mode is allowed, or none of those allowed serves the batch.
        """
        entry = self.entry_for(
            num_tokens, uniform_decode, num_active_loras, has_lora, valid_modes, invalid_modes
        )
        if entry is None:
            return _NONE, BatchDescriptor(num_tokens)
        return entry.mode, entry.batch_descriptor

    def entry_for(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        num_active_loras: int = 0,
        has_lora: bool | None = None,
        valid_modes: Collection[CUDAGraphMode] | None = None,
        invalid_modes: Collection[CUDAGraphMode] | None = None,
    ) -> PlanEntry | None:
        """The entry that ``dispatch`` answers with, ``None`` where the batch runs eagerly.

        Raises:
            BatchError: no mode is allowed, or none of those allowed serves the batch.
        """
        allowed = _allowed_modes(valid_modes, invalid_modes)
        if num_tokens > self._maximum or allowed == {_NONE}:
            return None
        keys = self._keys_of(num_tokens, num_active_loras, has_lora)
        full = keys.mixed
        if uniform_decode and self.family.mode.separate_routine():
            full = keys.decode
            if self._ragged:
                self._refuse_ragged(num_tokens)
        if full is not None and _FULL in allowed:
            return full
        if keys.pieces is not None and _PIECEWISE in allowed:
            return keys.pieces
        if _NONE not in allowed:
            raise BatchError(
                f"{num_tokens} tokens with {num_active_loras} LoRAs have no {_names(allowed)} graph; "
                "allow NONE, or another mode"
            )
        return None

    def candidates(self, num_tokens: int, num_active_loras: int = 0) -> tuple[PlanEntry, ...]:
        """Entries at the padded size: of uniform decode first, then mixed, then in pieces."""
        keys = self._keys_of(num_tokens, num_active_loras, None)
        return tuple(entry for entry in (keys.decode, keys.mixed, keys.pieces) if entry is not None)

    def _keys_of(self, num_tokens: int, num_active_loras: int, has_lora: bool | None) -> _Keys:
        if has_lora is None:
            has_lora = num_active_loras > 0
        case = self.captured_case(num_active_loras) if has_lora else num_active_loras
        if not 0 < num_tokens < len(self._padded) or has_lora != (case > 0):
            return _NO_KEYS
        return self._keys.get((self._padded[num_tokens], case), _NO_KEYS)

    def _refuse_ragged(self, num_tokens: int) -> None:
        sizes, query_len = self.family.sizes, self.family.decode_query_len
        padded = sizes[bisect_left(sizes, num_tokens)]
        if num_tokens > 0 and padded in self._ragged:
            raise BatchError(
                f"uniform decode of {num_tokens} tokens is padded to {padded}, but decode requests have "
                f"{query_len}; make every capture size a multiple"
            )


def v1_dispatch_table(plan: Plan, family: str, resolved: ResolvedFamily) -> V1DispatchTable:
    """The table of ``family``; what a plan written by hand leaves open follows from its entries.

    Raises:
        FamilyError: the plan has no such family.
    """
    entries, lora = plan.entries(family), plan.deployment.lora
    sizes = resolved.cudagraph_capture_sizes or [entry.num_tokens for entry in entries]
    cases = sorted({*resolved.lora_cases, *(entry.num_active_loras for entry in entries)})
    specialized = sum(case > 0 for case in cases) > 1
    return V1DispatchTable(
        entries,
        V1Family(
            mode=resolved.cudagraph_mode,
            sizes=tuple(sorted({size for size in sizes if size > 0})),
            max_num_seqs=resolved.max_num_seqs or max((entry.num_reqs or 1 for entry in entries), default=1),
            decode_query_len=resolved.decode_query_len
            or max((entry.uniform_token_count or 1 for entry in entries), default=1),
            lora_cases=tuple(cases),
            specialize_active_lora=bool(lora.specialize_active_lora) if lora else specialized,
            microbatching=resolved.microbatching,
        ),
    )


def _allowed_modes(
    valid: Collection[CUDAGraphMode] | None, invalid: Collection[CUDAGraphMode] | None
) -> frozenset[CUDAGraphMode]:
    allowed = frozenset(valid) if valid else _RUNTIME_MODES
    if invalid:
        allowed = allowed.difference(invalid)
    if not allowed:
        raise BatchError("no mode is left to dispatch to; allow NONE at least")
    return allowed


def _names(modes: Iterable[CUDAGraphMode]) -> str:
    return " or ".join(sorted(str(mode) for mode in modes))


def _keys_by_size(entries: Iterable[PlanEntry], family: V1Family) -> Mapping[tuple[int, int], _Keys]:
    """The keys at each size and LoRA case; an entry that is no key of V1's serves nothing."""
    found: dict[tuple[int, int], dict[str, PlanEntry]] = {}
    for entry in entries:
        role = _role(entry, family)
        if role is not None:
            found.setdefault((entry.num_tokens, entry.num_active_loras), {}).setdefault(role, entry)
    return {place: _Keys(**roles) for place, roles in found.items()}


def _role(entry: PlanEntry, family: V1Family) -> str | None:
    """Which batches ``entry`` is the key of, ``None`` where V1 pads no batch to it."""
    count, query_len = entry.uniform_token_count, family.decode_query_len
    if entry.max_query_len is not None or count not in (None, query_len):
        return None
    if entry.mode is _PIECEWISE:
        return "pieces" if entry.num_reqs is None and count is None else None
    if count is None:
        return "mixed" if entry.num_reqs == min(entry.num_tokens, family.max_num_seqs) else None
    padded_reqs = min(entry.num_tokens // query_len, family.max_num_seqs)
    return "decode" if entry.num_reqs == padded_reqs else None
