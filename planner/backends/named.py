"""What a backend replays where a deployment names it and gives no model.

Source: vLLM 0.33, the support that each metadata builder declares (rules 3.4).
"""

from __future__ import annotations

import difflib

from attrs import frozen

from planner.backends.environment import Environment, shown
from planner.backends.support import BACKEND_NAMES, OTHER_PLATFORMS, GroupShape, backend_support, varlen_bound
from planner.backends.traits import SELECTABLE
from planner.errors import PlanError
from planner.modes import AttentionSupport

_HEADS_ASSUMED = (
    "FLASHINFER: query heads are a multiple of KV heads, heads have 16 to 256 elements in steps of 16, the "
    "KV cache is not nvfp4, and attention is causal"
)
_COMPOSITE_ASSUMED = (
    "{name}: image tokens may look beyond a layer's window, as in Gemma 3; of a model that clamps them it is "
    "UNIFORM_SINGLE_TOKEN_DECODE"
)


@frozen
class NamedSupport:
    """The level of a named backend, its bound on mixed query lengths, and what was assumed."""

    support: AttentionSupport
    varlen_max_query_len: int | None
    assumptions: tuple[str, ...]


def support_of_backend_name(
    name: str, env: Environment, *, field: str = "model.attention_backend"
) -> NamedSupport:
    """What the backend ``name`` replays on a device, as far as the name alone tells.

    ``field`` is the setting that names it. Without the heads of a model, FLASHINFER is taken to
    have heads that its kernels serve; ``env.num_heads`` does not count.

    Raises:
        PlanError: no backend of that name is known, or none that the device runs.
    """
    known = name.upper()
    if known not in BACKEND_NAMES:
        close = difflib.get_close_matches(known, BACKEND_NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(BACKEND_NAMES)}"
        raise PlanError(f"{name!r} is not a known attention backend; {hint}", fields=(field,))
    _refuse_other_device(known, env, field)
    composite = known in ("TRITON_FLASH_ATTN", "TRITON_FLASHINFER")
    support = backend_support(known, env, GroupShape(unclamped_window=composite))
    assumptions = []
    if known == "FLASHINFER" and env.major >= 9 and env.decode_context_parallel_size == 1:
        assumptions.append(_HEADS_ASSUMED)
    if composite:
        assumptions.append(_COMPOSITE_ASSUMED.format(name=known))
    if known.startswith(OTHER_PLATFORMS):
        assumptions.append(f"{known}: the engine runs on the platform that has it, which is not modelled")
    return NamedSupport(support, varlen_bound(known, env, support), tuple(assumptions))


def _refuse_other_device(name: str, env: Environment, field: str) -> None:
    traits = SELECTABLE.get(name)
    if traits is not None and not traits.runs_on(env.capability):
        raise PlanError(
            f"{name} runs on compute capability {traits.device_range()}, not {shown(env.capability)}; name "
            "another backend or device",
            fields=(field, "device.compute_capability"),
        )
