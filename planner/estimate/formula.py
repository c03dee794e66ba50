"""What the graphs of one family cost by formula: buffers, pool, graphs, and the time to capture them.

Memory is one pool as large as the largest entry needs it, whatever the number of entries, and what each
graph holds of its own by its number of nodes. Time is what the first capture sets up, and a cost of each
entry by its mode, its layers and its pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.plan import ResolvedFamily
from planner.estimate.calibration import Calibration
from planner.estimate.shape import Shape
from planner.modes import CUDAGraphMode

BLOCK_SIZE = 16
"""Tokens of a block of the KV cache where a deployment does not say."""

PROLOGUE_SHARE = 0.3
"""Nodes of a layer that store a context row's keys and values, as a share of all of its nodes."""

MAX_GATHERED_ELEMENTS = 1 << 27
"""Keys that the reference attention gathers at a time."""

PLACE_BYTES = 4
"""What the reference attention holds of the place of each key."""

SEEN_BYTES = 5
"""What it holds of whether a query sees a key, beside what is added to the score: a mark and a float32."""


@frozen(kw_only=True)
class FamilyCost:
    """What one family takes: bytes of its own buffers, of the pool it needs, and of its graphs.

    ``sizes`` are the numbers of tokens of its entries, ``seconds`` by mode, without what is set up first.
    """

    num_graphs: int
    static_bytes: float
    pool_bytes: float
    graph_bytes: float
    seconds: Mapping[CUDAGraphMode, float]
    sizes: frozenset[int]


@frozen(kw_only=True)
class FamilyRequest:
    """The entries of one family, on which model they run, and under which limits.

    ``gathered_tokens`` is for attention that copies so many tokens of each request's context, as this
    project's reference models do; engines' kernels read the cache in place.
    """

    entries: Sequence[PlanEntry]
    shape: Shape
    resolved: ResolvedFamily | None = None
    block_size: int = BLOCK_SIZE
    gathered_tokens: int | None = None

    @property
    def max_num_tokens(self) -> int:
        """Tokens of the largest entry."""
        return max((entry.num_tokens for entry in self.entries), default=0)

    @property
    def max_num_reqs(self) -> int:
        """Most requests that a step may have."""
        limit = None if self.resolved is None else self.resolved.max_num_seqs
        return limit or max((entry.num_reqs or entry.num_tokens for entry in self.entries), default=0)


def family_cost(request: FamilyRequest, constants: Calibration) -> FamilyCost:
    """The cost of one family by itself."""
    shape, sizes, graphs, nodes = request.shape, set(), 0, 0.0
    alike: dict[tuple[str, int, bool], list[PlanEntry]] = {}
    for entry in request.entries:
        alike.setdefault((entry.mode.name, entry.num_ubatches, entry.prologue is None), []).append(entry)
        sizes.add(entry.num_tokens)
    seconds: dict[CUDAGraphMode, float] = {}
    for entries in alike.values():
        first, number = entries[0], len(entries)
        graphs += number * num_graphs(first, shape)
        nodes += number * num_nodes(first, shape, constants)
        taken = number * entry_seconds(first, shape, constants)
        seconds[first.mode] = seconds.get(first.mode, 0.0) + taken
    return FamilyCost(
        num_graphs=graphs,
        static_bytes=static_bytes(request),
        pool_bytes=pool_bytes(request, constants),
        graph_bytes=graphs * constants.graph_bytes + nodes * constants.node_bytes,
        seconds=seconds,
        sizes=frozenset(sizes),
    )


def num_graphs(entry: PlanEntry, shape: Shape) -> int:
    """Graphs that one entry is recorded as."""
    return shape.num_pieces if entry.mode is CUDAGraphMode.PIECEWISE else 1


def num_nodes(entry: PlanEntry, shape: Shape, constants: Calibration) -> float:
    """Nodes of all graphs of one entry."""
    nodes = entry.num_ubatches * constants.num_nodes(entry.mode, shape.num_layers)
    if entry.prologue is not None:
        nodes += PROLOGUE_SHARE * shape.num_layers * constants.layer_nodes[entry.mode]
    return nodes


def entry_seconds(entry: PlanEntry, shape: Shape, constants: Calibration) -> float:
    """Seconds to warm up with one entry and to record it, nothing being new."""
    layers = float(entry.num_ubatches * shape.num_layers)
    if entry.prologue is not None:
        layers += PROLOGUE_SHARE * shape.num_layers
    return layers * constants.layer_seconds[entry.mode] + num_graphs(entry, shape) * constants.graph_seconds


def static_bytes(request: FamilyRequest) -> float:
    """Bytes of the inputs and outputs that graphs read and write at fixed addresses.

    Inputs are token numbers and positions, slots, lengths and block tables of the longest requests.
    """
    tokens, reqs, shape = request.max_num_tokens, request.max_num_reqs, request.shape
    if not tokens:
        return 0
    groups = max(len(request.resolved.attention_groups), 1) if request.resolved is not None else 1
    length = request.gathered_tokens or shape.max_model_len
    blocks = -(-length // request.block_size)
    inputs = tokens * (8 + 8 + 1 + 8 * groups) + reqs * (4 + 4 + 4 * blocks * groups)
    outputs = tokens * shape.hidden_size * shape.element_bytes * shape.num_outputs
    context = max(
        (entry.prologue.num_context_tokens for entry in request.entries if entry.prologue is not None),
        default=0,
    )
    return inputs + outputs + context * (16 + shape.hidden_size * shape.element_bytes)


def pool_bytes(request: FamilyRequest, constants: Calibration) -> float:
    """Bytes of the pool: the activations of the largest entry of the mode that needs most."""
    if not request.entries:
        return 0
    shape = request.shape
    widest = request.max_num_tokens * shape.activation_width * shape.element_bytes
    gathered = 0
    if request.gathered_tokens is not None:
        gathered = max(_gathered_bytes(entry, shape, request.gathered_tokens) for entry in request.entries)
    return constants.pool_base_bytes + constants.pool_factor * widest + gathered


def _gathered_bytes(entry: PlanEntry, shape: Shape, length: int) -> int:
    """Keys and values that the reference attention copies in a whole graph, and who sees which of them."""
    if entry.mode is not CUDAGraphMode.FULL:
        return 0
    rows = entry.num_reqs if entry.uniform_token_count and entry.num_reqs else entry.num_tokens
    queries = entry.uniform_token_count or 1
    length = -(-length // BLOCK_SIZE) * BLOCK_SIZE
    keys = shape.num_kv_heads * shape.head_size
    heads = 1 if queries == 1 else shape.num_heads // shape.num_kv_heads
    scores = rows * queries * length * (SEEN_BYTES + shape.element_bytes * heads)
    places = rows * length * PLACE_BYTES
    rows = min(rows, max(MAX_GATHERED_ELEMENTS // (length * keys), 1))
    return 2 * rows * length * keys * shape.element_bytes + scores + places


def first_bytes(sizes: Iterable[int], constants: Calibration) -> float:
    """Bytes of what is set up once, and of kernels that are loaded for each number of tokens."""
    return constants.first_bytes + len(set(sizes)) * constants.size_bytes


def first_seconds(sizes: Iterable[int], num_kinds: int, constants: Calibration) -> float:
    """Seconds of the same, and of the first entry of each mode of each family."""
    return (
        constants.first_seconds
        + num_kinds * constants.kind_seconds
        + len(set(sizes)) * constants.size_seconds
    )
