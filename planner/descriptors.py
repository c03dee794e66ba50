"""What uniquely describes a padded batch, and when a recorded graph may serve one.

``fits`` is the single definition of "this graph serves that batch": compile, dispatch,
verification, explanation and the executor all decide through it.
"""

from __future__ import annotations

from functools import cached_property

from attrs import evolve, field, frozen

from planner.modes import CUDAGraphMode

DFLASH_CONTEXT_KV = "dflash_context_kv"

MAX_GRAPH_TOKENS = 1 << 20
"""Largest graph, in tokens, that a document may speak of: far above any real one, and a bound on
the memory of a dispatch table made from a stranger's file."""

MAX_LORAS = 1 << 16
"""Most adapters that a document may speak of, for the same reason."""


@frozen
class BatchDescriptor:
    """The key of a captured graph inside a forward context.

    Fields as in vLLM 0.33's forward context: ``num_tokens`` padded tokens; ``num_reqs`` padded
    requests, ``None`` where any number fits; ``uniform`` whether all requests have the same
    query length; ``has_lora`` and ``num_active_loras`` the LoRA case.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False
    has_lora: bool = False
    num_active_loras: int = 0


# A dict class on purpose: its frozen __init__ writes the instance dict directly, which makes the
# descriptor of an eager batch several times cheaper than a slotted one on every dispatch.
@frozen(slots=False)
class BatchExecutionDescriptor:
    """Capture key and dispatch result in one (vLLM 0.33, V2 runner).

    ``None`` in a field means that the graph does not constrain it. ``num_tokens`` counts padded
    tokens of one rank, ``max_query_len`` bounds the tokens of each request, ``num_ubatches`` is
    the number of microbatches that the step is cut into.
    """

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


@frozen
class Prologue:
    """Work recorded ahead of the forward inside the same graph.

    ``num_context_tokens`` is the number of context rows whose K/V the graph computes and stores.
    """

    kind: str = field(metadata={"choices": (DFLASH_CONTEXT_KV,)})
    num_context_tokens: int = field(metadata={"minimum": 1})


@frozen(slots=False)
class PlanEntry:
    """One graph of a plan. The fields are those of ``BatchExecutionDescriptor``.

    ``with_lora`` says that the family serves LoRA adapters at all; it follows from the document
    around the entry, is not written, and only decides ``has_lora`` of a V2 PIECEWISE entry.
    """

    mode: CUDAGraphMode = field(metadata={"choices": (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)})
    num_tokens: int = field(metadata={"minimum": 1, "maximum": MAX_GRAPH_TOKENS})
    num_reqs: int | None = field(default=None, metadata={"minimum": 1})
    uniform_token_count: int | None = field(default=None, metadata={"minimum": 1})
    max_query_len: int | None = field(default=None, metadata={"minimum": 1})
    num_active_loras: int = field(default=0, metadata={"minimum": 0, "maximum": MAX_LORAS + 1})
    num_ubatches: int = field(default=1, metadata={"minimum": 1})
    prologue: Prologue | None = None
    with_lora: bool = field(default=False, eq=False, repr=False, kw_only=True)

    @cached_property
    def execution_descriptor(self) -> BatchExecutionDescriptor:
        """What dispatch returns for a batch that this entry serves."""
        return BatchExecutionDescriptor(
            self.mode,
            self.num_tokens,
            self.num_reqs,
            self.uniform_token_count,
            self.max_query_len,
            self.num_active_loras,
            self.num_ubatches,
        )

    @cached_property
    def batch_descriptor(self) -> BatchDescriptor:
        """What the forward context carries while this entry is captured or replayed."""
        has_lora = self.num_active_loras > 0 or (self.with_lora and self.mode is CUDAGraphMode.PIECEWISE)
        return BatchDescriptor(
            self.num_tokens,
            self.num_reqs,
            self.uniform_token_count is not None,
            has_lora,
            self.num_active_loras,
        )

    def in_lora_family(self) -> PlanEntry:
        """This entry as a member of a family that serves LoRA adapters."""
        return self if self.with_lora else evolve(self, with_lora=True)


def fits(
    descriptor: BatchExecutionDescriptor | PlanEntry,
    num_reqs: int,
    num_tokens: int,
    uniform_token_count: int | None,
    num_active_loras: int,
    max_query_len: int | None,
    num_ubatches: int,
) -> bool:
    """Whether the graph of ``descriptor`` may be replayed for the batch.

    ``num_active_loras`` is the captured LoRA case, after rounding up. Source: vLLM 0.33,
    the compatibility test of the V2 graph manager.
    """
    return (
        (descriptor.uniform_token_count is None or descriptor.uniform_token_count == uniform_token_count)
        and (
            descriptor.max_query_len is None
            or (max_query_len is not None and descriptor.max_query_len >= max_query_len)
        )
        and (descriptor.num_reqs is None or descriptor.num_reqs >= num_reqs)
        and descriptor.num_tokens >= num_tokens
        and descriptor.num_active_loras == num_active_loras
        and descriptor.num_ubatches == num_ubatches
    )
