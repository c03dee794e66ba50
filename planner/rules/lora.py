"""LoRA cases: the numbers of active adapters that graphs are captured for, and their rounding.

Source: vLLM 0.33, captured LoRA counts and the V2 runner's LoRA map (rules 4.3 and 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.modes import Runner


def lora_cases(
    max_loras: int | None, *, specialize_active_lora: bool, specialize_lora: bool, runner: Runner
) -> tuple[int, ...]:
    """Captured numbers of active adapters, ascending; 0 is the case without any.

    ``max_loras`` is ``None`` where LoRA is off. ``specialize_lora`` is vLLM's
    ``cudagraph_specialize_lora``, ``specialize_active_lora`` that of its LoRAConfig.
    """
    if max_loras is None:
        return (0,)
    every = max_loras + 1
    if not specialize_lora:
        return (every,) if runner is Runner.V1 else (0, every)
    if not specialize_active_lora:
        return (0, every)
    powers = {1 << exponent for exponent in range(every.bit_length())}
    return (0, *sorted(powers | {every}))


def lora_map(cases: Iterable[int]) -> tuple[int, ...]:
    """For each number of active adapters from 0 on, the captured case that serves it (V2).

    Numbers above the last index are served by the last value. Without a case above 0 the map is
    empty and a number stands for itself.
    """
    captured = sorted(case for case in cases if case > 0)
    mapped = [0]
    for case in captured:
        mapped.extend([case] * (case + 1 - len(mapped)))
    return tuple(mapped) if captured else ()
