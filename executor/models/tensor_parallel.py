"""Tensor parallelism of the reference models: each rank has some heads and some of the feed-forward.

The weights are cut by PyTorch's own styles of parallel modules. Each layer adds up the ranks' parts twice,
behind attention and behind the feed-forward; embeddings, norms and head are whole on every rank.
"""

from __future__ import annotations

from typing import cast

from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from executor.distributed.collectives import Collectives
from executor.errors import ModelError
from executor.models.config import DecoderConfig
from executor.models.qwen3 import DecoderLayer, DecoderStack


def parallelize(model: DecoderStack, collectives: Collectives) -> None:
    """Leaves ``model`` this rank's part of its layers; every rank of ``collectives`` calls this.

    The weights are those of the first rank. Call it ahead of making the cache, which has this rank's heads.

    Raises:
        ModelError: the ranks cannot share the model's heads or its feed-forward evenly.
    """
    shared = kv_heads_are_shared(model.config, collectives.size)
    plan = layer_plan(kv_shared=shared)
    for module in model.layers:
        layer = cast(DecoderLayer, module)
        parallelize_module(layer, collectives.mesh, plan)
        layer.self_attn.add_up = layer.mlp.add_up = collectives.add_up
    if shared:
        model.num_kv_heads = model.config.num_key_value_heads // collectives.size


def layer_plan(*, kv_shared: bool) -> dict[str, ParallelStyle]:
    """How the parts of a layer are cut; a result of rows stays a part until it is added up."""
    columns = ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj"]
    if kv_shared:
        columns += ["self_attn.k_proj", "self_attn.v_proj"]
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[name] = RowwiseParallel(output_layouts=Partial())
    return plan


def kv_heads_are_shared(config: DecoderConfig, size: int) -> bool:
    """Whether each of ``size`` ranks has KV heads of its own; a single one is on all of them.

    Raises:
        ModelError: the sizes do not divide.
    """
    counts = {
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
    }
    if config.num_key_value_heads > 1:
        counts["num_key_value_heads"] = config.num_key_value_heads
    for name, count in counts.items():
        if count % size:
            raise ModelError(
                f"{name} is {count}, which {size} tensor-parallel ranks do not share evenly; "
                "give a tensor_parallel_size that divides it"
            )
    return config.num_key_value_heads > 1
