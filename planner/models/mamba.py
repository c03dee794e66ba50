"""The recurrent state that a hybrid model keeps beside its attention cache."""

from __future__ import annotations

from attrs import frozen

from planner.models.reader import ConfigReader


@frozen(kw_only=True)
class MambaState:
    """The recurrent state of one Mamba2 or gated-delta-net layer, for the whole model.

    ``conv_width`` elements are kept for each of ``conv_rows`` past tokens (one more for each
    draft token), ``state_elements`` for the recurrence, in ``state_dtype`` (``None``: the
    model's own).
    """

    conv_width: int
    conv_rows: int
    state_elements: int
    state_dtype: str | None = None


def mamba_state(config: ConfigReader, model_type: str) -> MambaState | None:
    """The recurrent state of Nemotron-H's and of Qwen's hybrid layers.

    ``None`` for other models, and where the config leaves out a number that the size follows
    from.

    Raises:
        PlanError: such a number is not a positive whole one.
    """
    if model_type == "nemotron_h":
        return _mamba2(config)
    if model_type.startswith(("qwen3_next", "qwen3_5")):
        return _gated_delta_net(config)
    return None


def _mamba2(config: ConfigReader) -> MambaState | None:
    keys = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    heads, head_size, state_size, groups, kernel = (config.integer(key, minimum=1) for key in keys)
    if not (heads and head_size and state_size and groups and kernel):
        return None
    return MambaState(
        conv_width=heads * head_size + 2 * groups * state_size,
        conv_rows=kernel - 1,
        state_elements=heads * head_size * state_size,
        state_dtype=config.text("mamba_ssm_cache_dtype") or "float32",
    )


def _gated_delta_net(config: ConfigReader) -> MambaState | None:
    keys = ("key_head_dim", "num_key_heads", "value_head_dim", "num_value_heads", "conv_kernel_dim")
    key_size, key_heads, value_size, value_heads, kernel = (
        config.integer(f"linear_{key}", minimum=1) for key in keys
    )
    if not (key_size and key_heads and value_size and value_heads and kernel):
        return None
    return MambaState(
        conv_width=2 * key_heads * key_size + value_heads * value_size,
        conv_rows=kernel - 1,
        state_elements=value_heads * key_size * value_size,
        state_dtype=config.text("mamba_ssm_dtype"),
    )
