"""Which sizes SGLang really captures of those in its config.

Source: SGLang 0.5.23, batch sizes of its decode runners and token counts of its prefill runner
(rules 8.3, 9 and 10).
"""

from __future__ import annotations

from attrs import frozen

from planner.documents.plan import Decision
from planner.engines.sglang.config import DECODE, DISABLED, FULL, PREFILL
from planner.engines.sglang.grids import aligned_up, rounded_up
from planner.engines.sglang.settings import SEQS_FIELD, Settings
from planner.errors import PlanError


@frozen
class Captured:
    """Sizes that are captured, ascending, and why they are not those of the config.

    Sizes are requests of decode graphs and tokens of prefill graphs.
    """

    sizes: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()


def decode_captures(settings: Settings) -> Captured:
    """The decode graphs of the target.

    Raises:
        PlanError: none is left, of which the server dies at its capture.
    """
    phase = settings.config.decode
    if phase.backend == DISABLED:
        return Captured()
    asked = phase.bs or ()
    sizes = decode_sizes(settings, "decode", width=settings.query_len, alignment=settings.alignment)
    if sizes == tuple(asked):
        return Captured(sizes)
    config, cap = settings.config, rounded_up(settings.request_pool, settings.alignment)
    because = f"ascending, up to the {cap} requests that a rank holds"
    if settings.alignment > 1:
        because += f", in multiples of {settings.alignment} tokens"
    decision = Decision(
        path=config.path(DECODE, "bs"),
        asked=list(asked) if config.is_locked(DECODE, "bs") else None,
        became=list(sizes),
        rule="captured-decode-sizes",
        because=because,
    )
    return Captured(sizes, (decision,))


def decode_sizes(settings: Settings, what: str, *, width: int, alignment: int) -> tuple[int, ...]:
    """Requests of the graphs of one decode runner with ``width`` tokens a request.

    Raises:
        PlanError: none is left, of which the server dies at its capture.
    """
    asked = settings.config.decode.bs or ()
    cap = rounded_up(settings.request_pool, alignment)
    wanted = {*asked, cap} if max(asked, default=0) > cap else set(asked)
    counted = 1 if settings.layout.two_batch_overlap else width
    sizes = tuple(sorted(size for size in wanted if size <= cap and size * counted % alignment == 0))
    if not sizes:
        raise PlanError(
            f"no {what} graph is left, of which the server dies at its start: none of the sizes up to "
            f"{max(asked, default=0)} is a multiple of {alignment} tokens, and a rank holds "
            f"{settings.request_pool} requests; raise max_num_seqs, or list multiples of {alignment}",
            fields=(settings.config.path(DECODE, "bs"), SEQS_FIELD),
        )
    return sizes


def prefill_captures(settings: Settings) -> Captured:
    """The prefill graphs of the target; none where its list is empty."""
    phase, config = settings.config.prefill, settings.config
    if phase.backend == DISABLED:
        return Captured()
    asked = phase.bs or ()
    held = tuple(sorted(asked))
    if settings.context_len is not None:
        slots = (phase.full_prefill_max_req or 1) if phase.backend == FULL else settings.request_pool
        held = tuple(size for size in held if size <= slots * (settings.context_len or 0))
    sizes = aligned_up(held, settings.alignment)
    if sizes == tuple(asked):
        return Captured(sizes)
    decision = Decision(
        path=config.path(PREFILL, "bs"),
        asked=list(asked) if config.is_locked(PREFILL, "bs") else None,
        became=list(sizes),
        rule="captured-prefill-sizes",
        because=f"ascending, rounded up to multiples of {settings.alignment} tokens, as far as the requests "
        "of a rank reach",
    )
    return Captured(sizes, (decision,))
