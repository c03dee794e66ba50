"""A DFlash drafter: one parallel pass proposes a whole block of tokens.

The context's keys and values are projected from hidden states of the target, never computed by the
drafter's own layers. A pass runs an anchor (the last known token) and a mask token for every token to
propose, all of which see the context and each other; each mask's output is the token at its position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from executor.errors import ModelError
from executor.inputs.kv_cache import LayerKVCache
from executor.models.config import DFlashConfig
from executor.models.qwen3 import Decoder, DecoderStack, RMSNorm, materialize


class DFlashDraft(DecoderStack):
    """The drafter. Embeddings and head are its target's."""

    def __init__(self, config: DFlashConfig) -> None:
        decoder = config.decoder
        super().__init__(decoder, "draft.layers")
        self.draft_config = config
        width = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(width, decoder.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(decoder.hidden_size, decoder.rms_norm_eps)
        self._target: tuple[Decoder, ...] = ()

    def attach(self, target: Decoder) -> None:
        """Takes embeddings and head from ``target``.

        Raises:
            ModelError: it returns other layers' outputs than the drafter reads, or has other sizes.
        """
        config = self.draft_config
        if target.aux_layer_ids != config.target_layer_ids:
            raise ModelError(
                f"the drafter reads layers {list(config.target_layer_ids)}, the target returns those of "
                f"{list(target.aux_layer_ids)}; build the target with the drafter's target_layer_ids"
            )
        sizes = (target.config.hidden_size, target.config.vocab_size)
        if sizes != (config.decoder.hidden_size, config.decoder.vocab_size):
            raise ModelError(
                f"the target has hidden size and vocabulary {sizes}; the drafter shares its embeddings "
                "and needs the same"
            )
        # Not a submodule: the target's weights are not the drafter's to move or to initialise.
        self._target = (target,)

    @property
    def target(self) -> Decoder:
        """The target that the drafter is attached to.

        Raises:
            ModelError: there is none.
        """
        if not self._target:
            raise ModelError("the drafter has no target; attach it to one")
        return self._target[0]

    def combine(self, aux: torch.Tensor) -> torch.Tensor:
        """Context rows from hidden states of the target's layers, side by side."""
        combined: torch.Tensor = self.hidden_norm(self.fc(aux))
        return combined

    def store_context(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        caches: Sequence[LayerKVCache],
    ) -> None:
        """Stores the keys and values of combined context rows in every layer's cache."""
        rotation = self.rotary(positions, hidden.dtype)
        rows = caches[0].rows_of(slots)
        for attention, cache in zip(self.attentions, caches, strict=True):
            cache.store(*attention.keys_and_values(hidden, rotation), rows)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states of the block's tokens behind the final norm."""
        hidden: torch.Tensor = self.target.embed_tokens(input_ids)
        rotation = self.rotary(positions, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation)
        normed: torch.Tensor = self.norm(hidden)
        return normed

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states, by the target's head."""
        return self.target.compute_logits(hidden)


def build_draft(
    config: DFlashConfig,
    target: Decoder,
    *,
    seed: int = 0,
    std: float = 0.02,
) -> DFlashDraft:
    """A drafter with random weights for ``target``, on its device and of its type.

    Raises:
        ModelError: the two do not fit.
    """
    with torch.device("meta"):
        model = DFlashDraft(config)
    model.attach(target)
    weight = target.norm.weight
    return materialize(model, seed=seed, std=std, dtype=weight.dtype, device=weight.device)


class DraftBuffers:
    """What a drafting step reads and writes, at fixed addresses.

    Context rows (``aux`` staged from the target, ``context_positions``, ``context_slots``) come first
    to ``max_context_tokens``; only the first ``max_staged_tokens`` of them are staged for graphs. Rows to
    sample (``sample_indices`` into the query rows, ``sample_pos`` their positions, ``sample_idx_mapping``
    the request of each, -1 for rows that sample nothing) are ``num_speculative_tokens`` a request, and
    so are ``draft_tokens``.
    """

    def __init__(
        self,
        draft: DFlashDraft,
        *,
        num_speculative_tokens: int,
        max_num_reqs: int,
        max_staged_tokens: int,
        max_context_tokens: int,
    ) -> None:
        weight = draft.fc.weight
        device = weight.device
        self.num_speculative_tokens = num_speculative_tokens
        self.aux = torch.zeros(max_staged_tokens, weight.shape[1], dtype=weight.dtype, device=device)
        self.context_positions = torch.zeros(max_context_tokens, dtype=torch.int64, device=device)
        self.context_slots = torch.full((max_context_tokens,), -1, dtype=torch.int64, device=device)
        rows = max_num_reqs * num_speculative_tokens
        self.sample_indices = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sample_pos = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sample_idx_mapping = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self.draft_tokens = torch.full(
            (max_num_reqs, num_speculative_tokens), -1, dtype=torch.int64, device=device
        )

    def make_inert(self) -> None:
        """No row samples and no context row has a place: what a graph is captured with."""
        self.sample_indices.zero_()
        self.sample_pos.zero_()
        self.sample_idx_mapping.fill_(-1)
        self.context_positions.zero_()
        self.context_slots.fill_(-1)

    def sample(self, draft: DFlashDraft, hidden: torch.Tensor, num_reqs: int) -> None:
        """Writes the greedy token of each row to sample, ties to the lowest, -1 for rows that are inert."""
        rows = num_reqs * self.num_speculative_tokens
        chosen = hidden.index_select(0, self.sample_indices[:rows])
        tokens = draft.compute_logits(chosen).argmax(-1)
        tokens = torch.where(self.sample_idx_mapping[:rows] < 0, -1, tokens)
        self.draft_tokens[:num_reqs].copy_(tokens.view(num_reqs, self.num_speculative_tokens))
