"""Needs: the decode batches that capture sizes have to cover, and the numbers that sizes are multiples of.

They are those of the verifier: each family of graphs, each query length in use, up to the widest batch
that a server forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.plan import Decision, Plan
from planner.modes import CUDAGraphMode
from planner.rules.encoder import ENCODER
from planner.rules.settings import Settings
from planner.rules.sizes import SIZES_FIELD
from planner.verify.domain import domain_of

SPLIT_BACKENDS = frozenset(
    {
        *("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2"),
        *(
            "flashinfer_nvlink_one_sided",
            "passthrough",
            "mori_high_throughput",
            "mori_low_latency",
            "nixl_ep",
        ),
    }
)
"""All-to-all backends with which experts split a step's tokens over the tensor-parallel ranks.

Source: vLLM 0.33, sequence-parallel mixture of experts (rules 6.4)."""

DEEPEP = "deepep_"
DEEPEP_TOKENS = 8
"""The portion in which DeepEP moves tokens. Source: SGLang 0.5.23, which rounds its sizes so."""


@frozen
class Need:
    """Uniform decode of 1 to ``widest`` requests of ``query_len`` tokens."""

    query_len: int
    widest: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the widest batch."""
        return self.query_len * self.widest


@frozen
class Alignment:
    """What sizes are to be multiples of beside their query length.

    Every size can be shared evenly by so many ``ranks``. Those of a ``portion`` of tokens and more
    are whole portions; a smaller one is moved as one portion whatever its size. ``backend`` is whose
    portions these are.
    """

    ranks: int = 1
    portion: int = 1
    backend: str = ""

    def shared(self, need: Need) -> int:
        """Tokens that every size of ``need`` is a multiple of."""
        return self._within(need, lcm(need.query_len, self.ranks), need.query_len)

    def whole(self, need: Need) -> int:
        """Tokens that the sizes from there on are multiples of."""
        return self._within(need, lcm(need.query_len, self.ranks, self.portion), self.shared(need))

    @staticmethod
    def _within(need: Need, multiple: int, otherwise: int) -> int:
        return multiple if multiple <= need.num_tokens else otherwise


@frozen
class Needs:
    """What sizes have to cover.

    ``families`` are the needs of each family with FULL decode graphs of its own, ``others`` those of
    families without; ``max_num_seqs`` is the most requests that a graph is made for.
    """

    families: tuple[tuple[Need, ...], ...]
    others: tuple[Need, ...]
    max_num_seqs: int
    alignment: Alignment

    @property
    def all(self) -> tuple[Need, ...]:
        """Every need once, the longest query first."""
        found = {need for family in self.families for need in family} | set(self.others)
        return tuple(sorted(found, key=lambda need: (-need.query_len, -need.widest)))

    @property
    def num_tokens(self) -> int:
        """Tokens of the widest batch of all."""
        return max((need.num_tokens for need in self.all), default=0)


def needs_of(plan: Plan, settings: Settings) -> Needs:
    """The needs of a plan whose sizes may be any: what is asked of a family depends on none."""
    families: list[tuple[Need, ...]] = []
    others: list[Need] = []
    for family, resolved in plan.resolved.items():
        if family == ENCODER or not resolved.cudagraph_mode:
            continue
        needs = tuple(needs_of_family(plan, family))
        if resolved.cudagraph_mode.decode_mode() is CUDAGraphMode.FULL:
            families.append(needs)
        else:
            others.extend(needs)
    return Needs(
        families=tuple(dict.fromkeys(families)),
        others=tuple(dict.fromkeys(others)),
        max_num_seqs=settings.max_num_seqs,
        alignment=alignment_of(plan.deployment, settings),
    )


def needs_of_family(plan: Plan, family: str) -> Iterator[Need]:
    """The widest batch of each query length in use that ``plan``'s server forms of a family."""
    domain = domain_of(plan, family)
    for tier in domain.tiers:
        widest = min(tier.max_num_reqs, domain.max_num_reqs, domain.max_num_tokens // tier.query_len)
        if widest > 0 and tier.query_len <= domain.max_model_len:
            yield Need(tier.query_len, widest)


def alignment_of(deployment: Deployment, settings: Settings) -> Alignment:
    """What tensor-parallel ranks and the all-to-all backend share the tokens of a step into."""
    parallel = deployment.parallel
    ranks = parallel.tensor_parallel_size or 1
    backend = parallel.all2all_backend or "allgather_reducescatter"
    experts_move = bool(parallel.enable_expert_parallel) and settings.data_parallel_size > 1
    asked = bool((deployment.compilation.pass_config or {}).get("enable_sp"))
    return Alignment(
        ranks=ranks if asked or (experts_move and backend in SPLIT_BACKENDS) else 1,
        portion=DEEPEP_TOKENS if experts_move and backend.startswith(DEEPEP) else 1,
        backend=backend,
    )


def alignment_decisions(needs: Needs) -> Iterator[Decision]:
    """Where sizes are aligned, and where the joint multiple is larger than the widest batch."""
    alignment = needs.alignment
    reasons = []
    if alignment.ranks > 1:
        reasons.append(f"{alignment.ranks} tensor-parallel ranks share a step's tokens")
    if alignment.portion > 1:
        reasons.append(f"{alignment.backend} moves {alignment.portion} tokens at a time")
    for need in needs.all if reasons else ():
        wanted = lcm(need.query_len, alignment.ranks, alignment.portion)
        became, top = alignment.whole(need), need.num_tokens
        because = f"{' and '.join(reasons)}, so sizes of decode requests of {need.query_len} "
        if became == wanted:
            because += f"are multiples of {became}" + (
                " from there on" if alignment.shared(need) < became else ""
            )
            if top % became:
                because += f", but for the widest batch of {top}: no larger graph is made"
        else:
            because += (
                f"should be multiples of {wanted}, but the widest batch has {top}: they are of {became}"
            )
        yield Decision(path=SIZES_FIELD, asked=wanted, became=became, rule="sizes-aligned", because=because)
