"""A small target and a drafter that is right about as often as a real one, made without training.

The target's attention looks back exactly ``period - 1`` tokens and continues with the successor of what
it finds, so that each token is the successor of the one ``period`` places earlier. The drafter looks
``period`` places back from each position that it proposes for, which is always into its context: what it
proposes is read from context K/V alone. Its own idea of a successor is wrong for some tokens, at a rate
that has it confirmed for somewhat more than half of its proposals. All other weights are small noise.
"""

from __future__ import annotations

import math
import random

import torch
from attrs import frozen

from executor.errors import ModelError
from executor.models.config import DecoderConfig, DFlashConfig
from executor.models.dflash_draft import DFlashDraft, build_draft
from executor.models.qwen3 import Attention, Decoder, build_decoder, inverse_frequencies

LOWEST_SHARE, HIGHEST_SHARE = 0.3, 0.8
"""Mean acceptance lies between these shares of the proposed tokens."""

VOCAB = 48
"""Tokens; the last is the mask."""

HEAD_DIM = 64
_NEXT = VOCAB
_ONE = 2 * VOCAB
"""Elements of a hidden state: token by token what was read, then what comes next, then a constant."""

_NOISE = 0.004
"""Standard deviation of all weights that are not set on purpose."""

_SHARPNESS = 12.0
"""Weights of the norms over queries and keys: they set how far the right place leads over its neighbours."""


@frozen(eq=False, kw_only=True)
class SpeculativePair:
    """A target and its drafter. ``period`` is the shortest prompt that both can continue sensibly."""

    target: Decoder
    draft: DFlashDraft
    num_speculative_tokens: int
    period: int

    def prompts(self, count: int, seed: int = 0, longest: int | None = None) -> list[list[int]]:
        """Random prompts of ``period`` tokens or more, up to ``longest``."""
        draw = random.Random(seed)  # noqa: S311 - contents of a test, no secret
        most = self.period + 8 if longest is None else longest
        lengths = [draw.randint(self.period, most) for _ in range(count)]
        return [[draw.randrange(VOCAB - 1) for _ in range(length)] for length in lengths]

    def accepts_plausibly(self, mean_acceptance: float) -> bool:
        """Whether a mean acceptance is neither that of a useless drafter nor that of a perfect one."""
        share = mean_acceptance / self.num_speculative_tokens
        return LOWEST_SHARE <= share <= HIGHEST_SHARE


def build_pair(
    num_speculative_tokens: int,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> SpeculativePair:
    """The pair for drafts of ``num_speculative_tokens`` tokens; the same seed gives the same pair.

    Raises:
        ModelError: fewer than 2 tokens, or more than the vocabulary can tell apart.
    """
    if not 2 <= num_speculative_tokens < VOCAB // 2:
        raise ModelError(f"drafts of {num_speculative_tokens} tokens; a pair has 2 to {VOCAB // 2 - 1}")
    period = num_speculative_tokens + 2
    config = _target_config()
    target = build_decoder(config, aux_layer_ids=(0, 1), seed=seed, std=_NOISE, dtype=dtype, device=device)
    draft_config = DFlashConfig(
        decoder=config,
        target_layer_ids=(0, 1),
        target_hidden_size=config.hidden_size,
        mask_token_id=VOCAB - 1,
        block_size=num_speculative_tokens + 1,
    )
    draft = build_draft(draft_config, target, seed=seed + 1, std=_NOISE)
    successors, guesses = _successors(seed, num_speculative_tokens)
    with torch.no_grad():
        _write_tokens(target)
        _look_back(target.attentions[0], config, period - 1, successors)
        for attention in draft.attentions:
            _look_back(attention, config, period, guesses)
        _pass_on(draft)
    return SpeculativePair(
        target=target, draft=draft, num_speculative_tokens=num_speculative_tokens, period=period
    )


def _target_config() -> DecoderConfig:
    return DecoderConfig(
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
        rope_theta=100.0,
    )


def _successors(seed: int, num_speculative_tokens: int) -> tuple[list[int], list[int]]:
    """Each token's successor, all but the mask in one ring, and the drafter's idea of it.

    One token in ``num_speculative_tokens`` is guessed wrongly, evenly along the ring.
    """
    ring = list(range(VOCAB - 1))
    random.Random(seed).shuffle(ring)  # noqa: S311 - weights of a test, no secret
    successors, guesses = list(range(VOCAB)), list(range(VOCAB))
    num_wrong = math.ceil(len(ring) / num_speculative_tokens)
    wrong = {index * len(ring) // num_wrong for index in range(num_wrong)}
    for index, token in enumerate(ring):
        successors[token] = ring[(index + 1) % len(ring)]
        guesses[token] = ring[(index + 2) % len(ring)] if index in wrong else successors[token]
    return successors, guesses


def _write_tokens(target: Decoder) -> None:
    """Embeddings say which token it is, and a constant; the head reads what comes next."""
    tokens = torch.arange(VOCAB)
    target.embed_tokens.weight[tokens, tokens] = 1.0
    target.embed_tokens.weight[:, _ONE] = 1.0
    target.lm_head.weight[tokens, _NEXT + tokens] = 1.0


def _look_back(attention: Attention, config: DecoderConfig, distance: int, successors: list[int]) -> None:
    """Makes the first head read the token ``distance`` places back and write its successor.

    A query turned back by ``distance`` places meets a key of that distance with all pairs aligned, and
    any other with pairs that point apart.
    """
    angles = inverse_frequencies(config) * distance
    query = torch.cat((angles.cos(), -angles.sin()))
    key = torch.cat((torch.ones(HEAD_DIM // 2), torch.zeros(HEAD_DIM // 2)))
    for projection, vector in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[:HEAD_DIM] = 0
        projection.weight[:HEAD_DIM, _ONE] = vector.to(projection.weight)
    for norm in (attention.q_norm, attention.k_norm):
        for weight in norm.parameters():
            weight.fill_(_SHARPNESS)
    tokens = torch.arange(VOCAB)
    attention.v_proj.weight[tokens, tokens] = 1.0
    attention.o_proj.weight[_NEXT + torch.tensor(successors), tokens] = 1.0


def _pass_on(draft: DFlashDraft) -> None:
    """The drafter's context rows hold what the target read: tokens of one layer, the constant of another."""
    tokens = torch.arange(VOCAB)
    draft.fc.weight[tokens, tokens] = 1.0
    draft.fc.weight[_ONE, draft.config.hidden_size + _ONE] = 1.0
