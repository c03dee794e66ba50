"""From a Deployment to the settings of SGLang's server: the importer's way back.

Source: SGLang 0.5.23, the flags of its server (rules 1) and its speculative algorithms (rules 9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.documents.data import plain
from planner.documents.deployment import Deployment, Json
from planner.engines.sglang.speculation import EAGLE_METHODS
from planner.engines.shared import SGLANG
from planner.exporters.exported import Exported, Outgoing
from planner.importers.flags import Flag
from planner.importers.sglang import KEYS, grammar

FOUND_BY_SERVER: Mapping[str, str] = {
    "model.config": "",
    "model.config_sha256": "",
    "model.num_kv_blocks": "the server measures it; sglang.max_total_tokens bounds it",
    "speculative.config": "",
    "speculative.config_sha256": "",
    "engine.name": "",
    "engine.version": "",
}
"""What no flag says, and why; without a reason, because it is the model or the program itself."""

_FIELDS: Mapping[tuple[str, str], str] = {place: field for field, place in KEYS.items()} | {
    ("parallel", "data_parallel_size"): "dp_size",
    ("lora", "max_loras"): "max_loras_per_batch",
    ("speculative", "method"): "speculative_algorithm",
    # The older names of the section are no flags any more.
    (SGLANG, "cuda_graph_bs"): "cuda_graph_bs_decode",
    (SGLANG, "cuda_graph_max_bs"): "cuda_graph_max_bs_decode",
}
_NOT_SECTIONS = frozenset({"name", "device", "capture"})


def export_sglang(deployment: Deployment) -> Exported:
    """The settings of SGLang's server for ``deployment``; what it has no flag for is in the notes."""
    out = Outgoing()
    flags = {flag.field: flag for flag in grammar().table.values() if flag.field}
    for section, values in plain(deployment).items():
        if section in _NOT_SECTIONS:
            continue
        if section == "lora":
            _put("enable_lora", True, flags, out)
        for key, value in values.items():
            _setting(section, key, value, deployment, flags, out)
    return out.finish(SGLANG)


def _setting(
    section: str, key: str, value: Json, deployment: Deployment, flags: Mapping[str, Flag], out: Outgoing
) -> None:
    path = f"{section}.{key}"
    reason = FOUND_BY_SERVER.get(path)
    if path == "engine.env":
        out.env.update(value)
    elif path == "speculative.num_speculative_tokens":
        for field, number in _draft_tokens(deployment, value):
            _put(field, number, flags, out)
    elif reason is not None:
        if reason:
            out.notes.append(f"{path}: {value}: sglang has no flag for it; {reason}")
    else:
        field = _FIELDS.get((section, key), key)
        flag = flags.get(field)
        if flag is None:
            out.notes.append(f"{path}: {value}: sglang has no flag for it; it is left out")
        elif flag.values == "none" and value is False:
            out.notes.append(f"{path}: false: is what sglang does without {flag.name}")
        else:
            _put(field, value.upper() if path == "speculative.method" else value, flags, out)


def _put(field: str, value: Json, flags: Mapping[str, Flag], out: Outgoing) -> None:
    out.settings[flags[field].name.removeprefix("--")] = value


def _draft_tokens(deployment: Deployment, number: int) -> Iterator[tuple[str, int]]:
    """The fields that say with SGLang's methods what ``num_speculative_tokens`` says.

    The section's own, where they are given, agree with it and are exported as they are.
    """
    method = ((deployment.speculative and deployment.speculative.method) or "").casefold()
    if method in EAGLE_METHODS:
        yield from (
            ("speculative_num_steps", number),
            ("speculative_eagle_topk", 1),
            ("speculative_num_draft_tokens", number + 1),
        )
    elif method == "dspark":
        yield "speculative_dspark_block_size", number
    else:
        field = "speculative_dflash_block_size" if method == "dflash" else "speculative_num_draft_tokens"
        yield field, number + 1
