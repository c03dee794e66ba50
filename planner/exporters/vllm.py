"""From a Deployment to the settings of ``vllm serve``: the importer's way back.

Source: vLLM 0.33, the flags of its serve parser and the config fields that they fill (rules 10).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.documents.data import plain
from planner.documents.deployment import Deployment, Json
from planner.engines.shared import VLLM
from planner.errors import ExportError
from planner.exporters.exported import Exported, Outgoing
from planner.importers.flags import Flag
from planner.importers.vllm import KEYS, SECTIONS, WHOLE_SECTIONS
from planner.importers.vllm_flags import grammar
from planner.modes import Runner
from planner.rules.settings import settle

RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"

FOUND_BY_SERVER: Mapping[str, str] = {
    "model.config": "",
    "model.config_sha256": "",
    "model.num_kv_blocks": "the server measures it",
    "model.attention_support": "it follows from the backend that the server selects",
    "model.attention_backends": "the server selects them by the layers of the model",
    "model.varlen_max_query_len": "it follows from the backend that the server selects",
    "speculative.config": "",
    "speculative.config_sha256": "",
    "speculative.attention_support": "it follows from the backend that the server selects",
    "parallel.is_moe_model": "it follows from the model",
    "engine.name": "",
    "engine.version": "",
    "engine.usage": "",
}
"""What no flag says, and why; without a reason, because it is the model or the program itself."""

_FIELDS = {place: field for field, place in KEYS.items()} | {
    (section, ""): field for field, section in WHOLE_SECTIONS.items()
}
_CONFIGS = {section: config for config, (section, _) in SECTIONS.items()}
_ONE_FLAG = frozenset(section for section in WHOLE_SECTIONS.values())
_NOT_SECTIONS = frozenset({"name", "device", "capture"})


def export_vllm(deployment: Deployment) -> Exported:
    """The settings of ``vllm serve`` for ``deployment``; what it has no flag for is in the notes.

    Raises:
        ExportError: ``vllm serve`` refuses what the engine behind it would take.
    """
    _refuse_drafts_of_adapters(deployment)
    return vllm_settings(deployment)


def vllm_settings(deployment: Deployment) -> Exported:
    """``export_vllm`` also of what ``vllm serve`` refuses."""
    out = Outgoing()
    flags = {flag.field: flag for flag in reversed(list(grammar().table.values())) if flag.field}
    for section, values in plain(deployment).items():
        if section in _NOT_SECTIONS:
            continue
        if section == "lora":
            out.settings["enable-lora"] = True
        if section in _ONE_FLAG:
            _whole(section, values, flags, out)
        else:
            for key, value in values.items():
                _setting(section, key, value, flags, out)
    return out.finish(VLLM)


def _refuse_drafts_of_adapters(deployment: Deployment) -> None:
    """With LoRA, its arguments have to leave room in a step for every request with all its drafts."""
    if deployment.lora is None or deployment.speculative is None:
        return
    settings = settle(deployment)
    needed, budget = settings.max_num_seqs * settings.query_len, settings.max_num_batched_tokens
    if needed > budget:
        raise ExportError(
            f"vllm serve takes LoRA with drafts only if a step has room for every request, "
            f"{settings.max_num_seqs} x {settings.query_len} = {needed} tokens, and its budget is {budget}; "
            "raise it, or lower max_num_seqs",
            fields=("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"),
        )


def _whole(section: str, values: Mapping[str, Json], flags: Mapping[str, Flag], out: Outgoing) -> None:
    """A section that one flag takes as JSON."""
    kept = {
        key: value for key, value in values.items() if not _found_by_server(f"{section}.{key}", value, out)
    }
    if kept:
        out.settings[_key(flags[_FIELDS[section, ""]].name)] = kept


def _setting(section: str, key: str, value: Json, flags: Mapping[str, Flag], out: Outgoing) -> None:
    path = f"{section}.{key}"
    if path == "engine.env":
        out.env.update(value)
    elif path == "engine.runner":
        out.env.setdefault(RUNNER_ENV, "1" if value == Runner.V2.value else "0")
    elif not _found_by_server(path, value, out):
        flag = flags.get(_FIELDS.get((section, key)) or f"{_CONFIGS.get(section)}.{key}")
        if flag is None:
            out.notes.append(f"{path}: {value}: vllm serve has no flag for it; it is left out")
        elif flag.values == "none" and value is False:
            out.settings[_key(_negative(flag))] = True
        elif value is not None:
            out.settings[_key(flag.name)] = value


def _found_by_server(path: str, value: Json, out: Outgoing) -> bool:
    reason = FOUND_BY_SERVER.get(path)
    if reason:
        out.notes.append(f"{path}: {value}: vllm serve has no flag for it; {reason}")
    return reason is not None


def _negative(flag: Flag) -> str:
    """The spelling that switches a flag off."""
    return next((name for name in flag.negative if name.startswith("--no-")), flag.negative[0])


def _key(spelling: str) -> str:
    return spelling.removeprefix("--")
