"""Which graphs exist: the entries of one family, in capture order.

Source: vLLM 0.33, candidate initialisation of the V2 graph manager (rules 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from planner.describe import counted
from planner.descriptors import PlanEntry
from planner.documents.plan import Microbatching
from planner.errors import PlanError
from planner.modes import CUDAGraphMode
from planner.rules.microbatch import microbatch_twin
from planner.rules.sizes import MAX_FIELD, SIZES_FIELD

MAX_ENTRIES = 100_000
"""Most graphs of a plan: far above what any server captures, and few enough that the plan is made in
seconds and its document can be read back."""

MAX_DECODE_SHAPES = 1 << 20
"""Most pairs of a capture size and a query length that are tried for one family."""


@frozen(kw_only=True)
class EntryRequest:
    """What the entries of a family follow from; tokens and requests are those of one rank.

    ``query_lens`` are the lengths that uniform decode batches may have, ``decode_query_len`` the
    longest. ``varlen_decode`` replaces the uniform entries by ones over mixed query lengths.
    """

    mode: CUDAGraphMode
    sizes: tuple[int, ...]
    max_num_seqs: int
    decode_query_len: int
    query_lens: tuple[int, ...]
    lora_cases: tuple[int, ...] = (0,)
    varlen_decode: bool = False
    microbatching: Microbatching | None = None

    @property
    def max_decode_tokens(self) -> int:
        """Tokens of the widest decode batch."""
        return self.max_num_seqs * self.decode_query_len

    @property
    def has_decode_graphs(self) -> bool:
        """Whether uniform decode batches have graphs of their own."""
        return self.mode.separate_routine() and self.mode.decode_mode() is CUDAGraphMode.FULL

    @property
    def with_lora(self) -> bool:
        """Whether the family serves LoRA adapters at all."""
        return self.lora_cases != (0,)

    @property
    def factors(self) -> str:
        """What multiplies the entries, as messages say it."""
        sizes, lengths = (
            counted(len(self.sizes), "capture size"),
            counted(len(self.query_lens), "query length"),
        )
        return f"{sizes}, {lengths} and {counted(len(self.lora_cases), 'LoRA case')}"


def too_many_graphs(what: str) -> PlanError:
    """The error about a plan that no machine would capture; ``what`` asks for its graphs."""
    return PlanError(
        f"{what} ask for more than {MAX_ENTRIES} graphs, the most that a plan takes; "
        "lower the maximum, or list fewer sizes",
        fields=(MAX_FIELD, SIZES_FIELD),
    )


def family_entries(request: EntryRequest) -> tuple[PlanEntry, ...]:
    """The entries of a family: PIECEWISE before FULL, each from the largest number of tokens down.

    Raises:
        PlanError: they are more than a plan takes.
    """
    if not request.mode or not request.sizes:
        return ()
    if len(request.sizes) * len(request.query_lens) > MAX_DECODE_SHAPES:
        raise too_many_graphs(request.factors)
    mixed, has_decode, with_lora = request.mode.mixed_mode(), request.has_decode_graphs, request.with_lora
    found: list[PlanEntry] = []
    seen: set[_Shape] = set()
    for num_tokens in request.sizes:
        # Sizes that round to one decode shape share its graph; the first of them places it.
        tried = _decode_shapes(request, num_tokens) if has_decode else ()
        shapes = [shape for shape in tried if shape not in seen]
        seen.update(shapes)
        if mixed is not CUDAGraphMode.NONE:
            num_reqs = min(num_tokens, request.max_num_seqs) if mixed is CUDAGraphMode.FULL else None
            shapes.append((mixed, num_tokens, num_reqs, None, None))
        for case in request.lora_cases:
            for shape in shapes:
                entry = PlanEntry(*shape, case, with_lora=with_lora)
                found.append(entry)
                twin = None if request.varlen_decode else microbatch_twin(entry, request.microbatching)
                if twin is not None:
                    found.append(twin)
        if len(found) > MAX_ENTRIES:
            raise too_many_graphs(request.factors)
    return capture_order(found)


def capture_order(entries: Iterable[PlanEntry]) -> tuple[PlanEntry, ...]:
    """``entries`` in the order in which a runner captures them; equal sizes keep their order."""
    by_size = sorted(entries, key=lambda entry: -entry.num_tokens)
    piecewise = [entry for entry in by_size if entry.mode is CUDAGraphMode.PIECEWISE]
    full = [entry for entry in by_size if entry.mode is CUDAGraphMode.FULL]
    return (*piecewise, *full)


_Shape = tuple[CUDAGraphMode, int, int | None, int | None, int | None]
"""Mode, tokens, requests, uniform token count, bound of the query length."""


def _decode_shapes(request: EntryRequest, num_tokens: int) -> Iterator[_Shape]:
    """FULL graphs for decode batches that the size ``num_tokens`` stands for."""
    if request.varlen_decode:
        if num_tokens <= request.max_decode_tokens:
            num_reqs = min(num_tokens, request.max_num_seqs)
            yield CUDAGraphMode.FULL, num_tokens, num_reqs, None, request.decode_query_len
        return
    most_tokens = min(request.max_decode_tokens, request.sizes[-1])
    for query_len in request.query_lens:
        num_reqs = -(-num_tokens // query_len)
        rounded = num_reqs * query_len
        if rounded <= most_tokens and num_reqs <= request.max_num_seqs:
            yield CUDAGraphMode.FULL, rounded, num_reqs, query_len, None
