"""Speculative decoding in SGLang: how many tokens a request has in each kind of graph.

``speculative.num_speculative_tokens`` k stands for k steps of one candidate with the methods of
EAGLE, for a block or a match of k tokens and the anchor with DFlash and n-grams, and for a block of
k with DSpark; SGLang's own settings say it where k is not given.
Source: SGLang 0.5.23, forced values and widths of its speculative algorithms (rules 9).
"""

from __future__ import annotations

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.engine_sections import SglangSection
from planner.documents.plan import Decision
from planner.errors import PlanError

METHOD_FIELD = "speculative.method"
TOKENS_FIELD = "speculative.num_speculative_tokens"
LM_HEAD_FIELD = "sglang.enable_dp_lm_head"

EAGLE_METHODS = frozenset({"eagle", "eagle3", "nextn", "standalone"})
DRAFT_WITH_PREFILL = EAGLE_METHODS - {"standalone"}
METHODS = (*sorted(EAGLE_METHODS), "dflash", "dspark", "ngram")

DEEP_DRAFT_MODELS = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM")
"""Architectures whose default draft tree is five steps deep."""

DFLASH_BLOCK = 16
NGRAM_TOKENS = 12
MAX_RUNNING_REQUESTS = 48
"""SGLang's limit of requests with any speculative method, unless the user sets one."""


@frozen(kw_only=True)
class Speculation:
    """What a method means for the graphs; lengths are tokens of one request.

    ``verify_len`` is what the target verifies, with the token that is certain; ``topk`` the width of
    the draft's own steps, of which there are ``num_steps``.
    """

    method: str
    verify_len: int
    num_steps: int
    topk: int

    @property
    def is_eagle(self) -> bool:
        """Whether the draft decodes step by step."""
        return self.method in EAGLE_METHODS


def speculation_of(deployment: Deployment, section: SglangSection) -> Speculation | None:
    """What the deployment's method means, ``None`` without speculative decoding.

    Raises:
        PlanError: the method is not known, or the number of tokens is not given or contradicts itself.
    """
    speculative = deployment.speculative
    if speculative is None:
        return None
    method = (speculative.method or "").casefold()
    if method not in METHODS:
        said = f"the rules of method {method!r} are not known" if method else "the method is not given"
        raise PlanError(f"{said}; known are {', '.join(METHODS)}", fields=(METHOD_FIELD,))
    k = speculative.num_speculative_tokens
    if method in EAGLE_METHODS:
        return _eagle(deployment, section, method, k)
    if method == "dflash":
        drafted = section.speculative_dflash_block_size or section.speculative_num_draft_tokens
        length = _agreed(k, 1, drafted, "sglang.speculative_num_draft_tokens") or _draft_block(deployment)
        return Speculation(method=method, verify_len=length or DFLASH_BLOCK, num_steps=1, topk=1)
    if method == "ngram":
        path = "sglang.speculative_num_draft_tokens"
        length = _agreed(k, 1, section.speculative_num_draft_tokens, path) or NGRAM_TOKENS
        return Speculation(method=method, verify_len=length, num_steps=1, topk=1)
    block = _agreed(k, 0, section.speculative_dspark_block_size, "sglang.speculative_dspark_block_size")
    if block is None:
        raise PlanError("the draft's block size is not given; write it", fields=(TOKENS_FIELD,))
    return Speculation(method=method, verify_len=block + 1, num_steps=1, topk=1)


def _eagle(deployment: Deployment, section: SglangSection, method: str, k: int | None) -> Speculation:
    steps = _agreed(k, 0, section.speculative_num_steps, "sglang.speculative_num_steps")
    topk, drafted = section.speculative_eagle_topk, section.speculative_num_draft_tokens
    if steps is None:
        if topk is not None or drafted is not None:
            raise PlanError(
                "given without the number of steps, which SGLang wants together",
                fields=("sglang.speculative_num_steps",),
            )
        steps, topk, drafted = _default_tree(deployment)
    topk = 1 if topk is None else topk
    if topk == 1:
        drafted = steps + 1
    if drafted is None:
        raise PlanError(
            f"a draft with {topk} candidates a step verifies as many tokens as are written here",
            fields=("sglang.speculative_num_draft_tokens",),
        )
    return Speculation(method=method, verify_len=drafted, num_steps=steps, topk=topk)


def _default_tree(deployment: Deployment) -> tuple[int, int, int]:
    """Steps, candidates of each and tokens to verify, which SGLang takes by the model."""
    config = deployment.model.config
    if config is None:
        raise PlanError(
            "the number of draft tokens is not given, and SGLang's default depends on the model; write it, "
            "or give model.config",
            fields=(TOKENS_FIELD,),
        )
    architectures = config.facts.get("architectures")
    first = architectures[0] if isinstance(architectures, list | tuple) and architectures else None
    return (5, 4, 8) if first in DEEP_DRAFT_MODELS else (3, 1, 4)


def _agreed(k: int | None, more: int, own: int | None, path: str) -> int | None:
    """The length that k and SGLang's own setting stand for."""
    if k is None or own is None:
        return own if k is None else k + more
    if k + more != own:
        raise PlanError(
            f"{k} draft tokens mean {k + more} here, but {own} is given", fields=(TOKENS_FIELD, path)
        )
    return own


def _draft_block(deployment: Deployment) -> int | None:
    config = deployment.speculative.config if deployment.speculative else None
    block = config.facts.get("block_size") if config else None
    return block if type(block) is int and block > 0 else None


def dp_lm_head_of(
    section: SglangSection, speculation: Speculation | None, *, attn_dp: int
) -> tuple[bool, tuple[Decision, ...]]:
    """Whether the output layer is split by requests, which block drafts need beside DP attention.

    Raises:
        PlanError: the method refuses data-parallel attention, or needs what is turned off.
    """
    asked = section.enable_dp_lm_head
    if speculation is None or attn_dp == 1:
        return bool(asked), ()
    method = speculation.method
    if method in ("standalone", "ngram"):
        raise PlanError(
            f"method {method} does not run with data-parallel attention; drop one of the two",
            fields=(METHOD_FIELD, "parallel.enable_dp_attention"),
        )
    if method not in ("dflash", "dspark") or asked:
        return bool(asked), ()
    because = f"method {method} with data-parallel attention needs it"
    if asked is False:
        raise PlanError(f"{because}, but it is turned off", fields=(LM_HEAD_FIELD, METHOD_FIELD))
    return True, (Decision(path=LM_HEAD_FIELD, became=True, rule="draft-needs-dp-lm-head", because=because),)
