"""Any causal language model of Hugging Face transformers, decoding with CUDA graphs on a static cache.

The model is used as it is: it is handed token ids, positions, masks and a cache through the arguments
that transformers itself uses for static caches. The package is imported when it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from attrs import define, field

from executor.capture_loop import Forward
from executor.dispatching import Key
from executor.errors import InputError, ModelError
from executor.manager import CudaGraphManager
from executor.materialize.regions import static_tensors
from executor.models.static_cache import PAD_POSITION, StaticKVCache
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.errors import MachineError
from planner.modes import CUDAGraphMode

ATTENTION = ("eager", "sdpa")
"""Attention implementations that take a mask of four dimensions."""


class HuggingFaceDecoder:
    """A transformers model with room for ``max_num_reqs`` requests of ``max_model_len`` tokens.

    ``model`` is a ``PreTrainedModel`` for causal language modelling. It is moved to ``device`` (where it
    is, if not given), put into evaluation mode, and set to an implementation of experts that does not
    read routing back to the host. ``max_query_len`` bounds the tokens of one request in a decode step.

    Request ``i`` of a step is row ``i`` of the cache.

    Raises:
        MachineError: transformers is not installed.
        ModelError: the model cannot be driven in this way, or is not in ``dtype``.
        InputError: requests would be longer than the model's own limit.
    """

    def __init__(
        self,
        model: Any,
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        max_query_len: int = 1,
    ) -> None:
        self._cache_class = _cache_class()
        self._cache_argument = _cache_argument(model)
        config = model.config.get_text_config()
        self._windows = attention_windows(config)
        _refuse_other_type(model, dtype)
        _refuse_too_long(config, max_model_len)
        self.device = torch.device(device or model.device)
        self.model = _capturable(model.to(self.device).eval(), self.device)
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = config.vocab_size
        self.max_num_reqs, self.max_model_len, self.max_query_len = max_num_reqs, max_model_len, max_query_len
        self.cache = StaticKVCache(
            config.num_hidden_layers, max_num_reqs, max_model_len, max_query_len, self.device
        )
        max_num_tokens = max_num_reqs * max_query_len
        self.input_ids = torch.zeros(max_num_tokens, dtype=torch.int64, device=self.device)
        self.positions = torch.full_like(self.input_ids, PAD_POSITION)
        self._allocate_cache()

    # Capture

    def create_forward_fn(self, desc: BatchExecutionDescriptor, warmup: bool) -> Forward:  # noqa: ARG002
        """What ``CudaGraphManager.capture`` asks for: a batch of padding, and its forward to logits.

        Raises:
            ModelError: the entry is no FULL decode entry of a uniform query length.
            InputError: the entry is larger than the buffers.
        """
        num_reqs, query_len = self._shape(desc)
        self._pad_from(0)
        return lambda cg_mode: self._logits(num_reqs, query_len)  # noqa: ARG005

    def fill(self, desc: BatchExecutionDescriptor) -> None:
        """Stages a batch of requests of different lengths, the same for each call: for verification.

        The rows of the cache are written to, so nothing that is being served may be in them.
        """
        num_reqs, query_len = self._shape(desc)
        rows = torch.arange(num_reqs, device=self.device)[:, None]
        columns = torch.arange(query_len, device=self.device)
        positions = rows * 7 % (self.max_model_len - query_len + 1) + columns
        self._pad_from(num_reqs * query_len)
        self.input_ids[: num_reqs * query_len] = ((positions + 31 * rows) % self.vocab_size).flatten()
        self.positions[: num_reqs * query_len] = positions.flatten()

    def front_of(self, desc: BatchExecutionDescriptor) -> Hashable | None:
        """What batches that ``fill`` begins alike have in common, as ``verify_entries`` asks for."""
        return desc.uniform_token_count

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that graphs of this model name by its address."""
        return static_tensors(
            self.device,
            model=self.model,
            cache=self.cache,
            inputs={"input_ids": self.input_ids, "positions": self.positions},
        )

    # Steps

    @torch.no_grad()
    def prefill(self, prompt_ids: Sequence[int], row: int = 0) -> torch.Tensor:
        """Runs a prompt eagerly into ``row`` of the cache; returns the logits behind its last token.

        Raises:
            InputError: the prompt is empty or too long, or has ids that the model does not know.
        """
        self._check_tokens(prompt_ids)
        if not 0 < len(prompt_ids) <= self.max_model_len:
            raise InputError(f"a prompt has 1 to {self.max_model_len} tokens, not {len(prompt_ids)}")
        if not 0 <= row < self.max_num_reqs:
            raise InputError(f"row {row}: the cache has rows 0 to {self.max_num_reqs - 1}")
        input_ids = torch.tensor([list(prompt_ids)], device=self.device)
        positions = torch.arange(len(prompt_ids), device=self.device)[None]
        return self._run(input_ids, positions, row, logits_to_keep=1)[0, -1]

    def stage(self, token_ids: Sequence[Sequence[int]], first_positions: Sequence[int]) -> None:
        """Puts the next tokens of each request, all of one number, into the input buffers.

        Raises:
            InputError: they do not fit the buffers, their row, or the model.
        """
        query_len = len(token_ids[0]) if token_ids else 0
        self._check_size(len(token_ids), query_len)
        if any(len(tokens) != query_len for tokens in token_ids) or len(first_positions) != len(token_ids):
            raise InputError(
                "the requests of a decode step have the same number of tokens, and a position each"
            )
        if min(first_positions) < 0 or max(first_positions) + query_len > self.max_model_len:
            raise InputError(f"a decode step goes beyond position {self.max_model_len - 1}; end the request")
        flat = [token for tokens in token_ids for token in tokens]
        self._check_tokens(flat)
        positions = [first + offset for first in first_positions for offset in range(query_len)]
        self.input_ids[: len(flat)] = torch.tensor(flat, device=self.device)
        self.positions[: len(flat)] = torch.tensor(positions, device=self.device)

    @torch.no_grad()
    def decode_step(
        self, num_reqs: int, query_len: int = 1, manager: CudaGraphManager | None = None
    ) -> torch.Tensor:
        """Logits ``[num_reqs * query_len, vocabulary]`` of the staged tokens.

        The batch is replayed by the graph that ``manager`` dispatches it to, padded to its size, and
        runs eagerly where there is none. The logits hold until the next replay.

        Raises:
            InputError: the batch is larger than the buffers.
        """
        self._check_size(num_reqs, query_len)
        num_tokens = num_reqs * query_len
        self._pad_from(num_tokens)
        key = None if manager is None else _dispatch(manager, num_reqs, query_len)
        if manager is None or key is None:
            return self._logits(num_reqs, query_len)
        logits: torch.Tensor = manager.run_fullgraph(key)
        return logits[:num_tokens]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        manager: CudaGraphManager | None = None,
    ) -> list[list[int]]:
        """What greedy decoding continues each prompt with; as many at a time as there are rows.

        A request ends after ``max_new_tokens``, or with a token at which the model's generation config
        ends.

        Raises:
            InputError: a prompt with its continuation is longer than ``max_model_len``.
        """
        for prompt in prompts:
            if max_new_tokens < 1 or len(prompt) + max_new_tokens > self.max_model_len:
                raise InputError(
                    f"{len(prompt)} tokens and {max_new_tokens} new ones: "
                    f"a request has at least one new token and at most {self.max_model_len} in all"
                )
        requests = [_Request(tuple(prompt), max_new_tokens, _end_ids(self.model)) for prompt in prompts]
        waiting, running = deque(requests), list[_Request]()
        while waiting or running:
            while waiting and len(running) < self.max_num_reqs:
                running.append(waiting.popleft())
                running[-1].new.append(int(self.prefill(running[-1].prompt, len(running) - 1).argmax()))
                self._drop_ended(running)
            if running:
                self.stage(
                    [[request.new[-1]] for request in running], [request.length - 1 for request in running]
                )
                chosen = self.decode_step(len(running), manager=manager).argmax(-1).tolist()
                for request, token in zip(running, chosen, strict=True):
                    request.new.append(token)
                self._drop_ended(running)
        return [request.new for request in requests]

    def _drop_ended(self, running: list[_Request]) -> None:
        """Takes ended requests out; the last one moves into the row that becomes free."""
        for row in reversed(range(len(running))):
            if running[row].has_ended:
                last = running.pop()
                if row < len(running):
                    running[row] = last
                    self.cache.move(len(running), row)

    # The forward

    def _logits(self, num_reqs: int, query_len: int) -> torch.Tensor:
        shape, num_tokens = (num_reqs, query_len), num_reqs * query_len
        input_ids, positions = self.input_ids[:num_tokens], self.positions[:num_tokens]
        return self._run(input_ids.view(shape), positions.view(shape), 0).flatten(0, 1)

    def _run(
        self, input_ids: torch.Tensor, positions: torch.Tensor, row: int, **options: Any
    ) -> torch.Tensor:
        slots = self.cache.slots(positions)
        masks = {kind: self.cache.mask(slots, self.dtype, window) for kind, window in self._windows.items()}
        cache = self._cache_class(layers=self.cache.rows(row, slots))
        output = self.model(
            input_ids=input_ids,
            position_ids=positions.clamp(min=0),
            attention_mask=masks.get(None, masks),
            use_cache=True,
            return_dict=True,
            **{self._cache_argument: cache},
            **options,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _allocate_cache(self) -> None:
        """One token of padding through the model, which shows what its layers store."""
        name = type(self.model).__name__
        try:
            with torch.no_grad():
                self._logits(1, 1)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ModelError(
                f"{name}: a forward on a static cache fails ({type(error).__name__}: {error}); "
                "take a decoder whose layers keep keys and values"
            ) from error
        if not self.cache.is_used:
            raise ModelError(f"{name}: keeps no keys and values in the cache that it is given")

    def _pad_from(self, num_tokens: int) -> None:
        self.input_ids[num_tokens:] = 0
        self.positions[num_tokens:] = PAD_POSITION

    # Checks

    def _shape(self, desc: BatchExecutionDescriptor) -> tuple[int, int]:
        num_reqs, query_len = desc.num_reqs, desc.uniform_token_count
        is_decode = desc.cg_mode is CUDAGraphMode.FULL and num_reqs is not None and query_len is not None
        if not is_decode or num_reqs * query_len != desc.num_tokens:  # type: ignore[operator]
            raise ModelError(
                f"{desc}: transformers models are captured for FULL decode entries of a uniform query "
                "length; compile the plan with cudagraph_mode FULL_DECODE_ONLY"
            )
        self._check_size(num_reqs, query_len)  # type: ignore[arg-type]
        return num_reqs, query_len  # type: ignore[return-value]

    def _check_size(self, num_reqs: int, query_len: int) -> None:
        if not (0 < num_reqs <= self.max_num_reqs and 0 < query_len <= self.max_query_len):
            raise InputError(
                f"{num_reqs} requests of {query_len} tokens: the buffers are made for 1 to "
                f"{self.max_num_reqs} of 1 to {self.max_query_len}"
            )

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        if any(not 0 <= token < self.vocab_size for token in token_ids):
            raise InputError(f"token ids of this model are 0 to {self.vocab_size - 1}")


def attention_windows(config: Any) -> dict[str | None, int | None]:
    """How far back tokens see, by the kind of layer; under ``None`` where a model has only one kind.

    Source: how transformers makes masks of a config for static caches (``create_masks_for_generate``).

    Raises:
        ModelError: a kind of layer is neither full nor sliding attention.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = (
            ["chunked_attention"] if window is None and getattr(config, "attention_chunk_size", None) else []
        )
    known = {"full_attention": None, "sliding_attention": window}
    others = sorted(set(kinds) - set(known))
    if others:
        raise ModelError(
            f"{type(config).__name__}: layers of {', '.join(others)} keep more than keys and values by "
            "position; take a model of full and sliding attention"
        )
    return {kind: known[kind] for kind in sorted(set(kinds))} or {None: window}


@define(eq=False)
class _Request:
    """A prompt and what has followed so far."""

    prompt: tuple[int, ...]
    limit: int
    end_ids: frozenset[int]
    new: list[int] = field(factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.new)

    @property
    def has_ended(self) -> bool:
        return len(self.new) >= self.limit or self.new[-1] in self.end_ids


def _dispatch(manager: CudaGraphManager, num_reqs: int, query_len: int) -> Key | None:
    """The graph that serves a decode batch; ``None`` where it runs eagerly."""
    table: DispatchTable | V1DispatchTable = manager.table
    num_tokens = num_reqs * query_len
    if isinstance(table, V1DispatchTable):
        mode, descriptor = table.dispatch(num_tokens, query_len == table.decode_query_len)
        return (mode, descriptor) if mode is CUDAGraphMode.FULL else None
    desc = table.dispatch(num_reqs, num_tokens, query_len)
    return desc if desc.cg_mode is CUDAGraphMode.FULL else None


def _end_ids(model: Any) -> frozenset[int]:
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def _cache_class() -> Any:
    try:
        return import_module("transformers.cache_utils").Cache
    except ImportError as error:
        raise MachineError(
            "transformers is not installed, or not usable here; install it with pip install 'transformers>=5'"
        ) from error


def _cache_argument(model: Any) -> str:
    """What the model's forward calls its cache: the name changed within transformers 5."""
    name = type(model).__name__
    if not hasattr(model, "config") or model.config.is_encoder_decoder:
        raise ModelError(f"{name} is no decoder of transformers; take a ...ForCausalLM")
    known = signature(model.forward).parameters
    argument = next((name for name in ("cache", "past_key_values") if name in known), None)
    if argument is None or "position_ids" not in known:
        raise ModelError(
            f"{name}: its forward takes no cache or no position_ids; requests would share positions"
        )
    if model.config._attn_implementation not in ATTENTION:  # noqa: SLF001 - transformers has no public name for it
        raise ModelError(f"{name}: set its attn_implementation to one of {', '.join(ATTENTION)}")
    return argument


def _capturable(model: Any, device: torch.device) -> Any:
    """The model with experts that need no routing on the host; one without experts stays as it is.

    Multiplying in groups has such a kernel for bfloat16 on GPUs; else each token's experts are gathered.
    """
    if device.type == "cuda" and model.dtype is torch.bfloat16:
        with suppress(ValueError):  # no experts
            model.set_experts_implementation("grouped_mm")
            return model
    model.set_experts_implementation("batched_mm")
    return model


def _refuse_other_type(model: Any, dtype: torch.dtype | None) -> None:
    # Casting here would round the model's tables of frequencies as well.
    if dtype is not None and dtype is not model.dtype:
        raise ModelError(f"{type(model).__name__} is {model.dtype}, not {dtype}; load it in that type")


def _refuse_too_long(config: Any, max_model_len: int) -> None:
    limit = getattr(config, "max_position_embeddings", None)
    if max_model_len < 1 or (limit is not None and max_model_len > limit):
        raise InputError(
            f"max_model_len {max_model_len}: this model takes 1 to {limit or 'any number of'} tokens"
        )
