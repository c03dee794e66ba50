"""The command lines of the corpus: vLLM's own parser and the importer say the same of each."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.compile import compile_plan
from planner.exporters.export import export
from planner.exporters.exported import ARGS
from planner.importers.imported import Imported
from planner.importers.launches import Launch
from planner.importers.source import choose, launches_in
from planner.importers.vllm_flags import grammar
from tests.planner.importers.corpus import ACCEPTED, OPTIONS, REFUSED, case_name, import_case
from vllm_side.report import Report
from vllm_side.serving import RefusedError, parsed

SEPARATE = {
    "cudagraph_capture_sizes": "compilation_config.cudagraph_capture_sizes",
    "max_cudagraph_capture_size": "compilation_config.max_cudagraph_capture_size",
    "attention_backend": "attention_config.backend",
}
"""Arguments that are fields of another's config as well."""

_UNKNOWN = re.compile(r"\$\{?\w+(?::-[^}]*)?\}?")

MODEL = "somebody/some-model"
NOT_COMPARED = frozenset(
    {"model", "model_tag", "config", "revision", "subparser", "kv_transfer_config.engine_id"}
)
"""What a plan does not hold, and what is drawn anew at every start."""

LATER = {
    "vllm/41-size-given-twice.sh",
    "vllm/44-variable-that-matters.sh",
    "vllm/45-several-servers.yaml",
} | {"vllm/46-value-from-a-config-map.yaml"}
"""Sources that are refused for a reason that a parser does not have."""


def check_corpus(report: Report) -> None:
    """Compares every source of vLLM."""
    for source in ACCEPTED:
        if source.parent.name == "vllm":
            report.add("corpus", case_name(source), list(_differences(source)))
    for source in REFUSED:
        if source.parent.name == "vllm" and case_name(source) not in LATER:
            report.add("refused corpus", case_name(source), list(_not_refused(source)))


def _differences(source: Path) -> Iterator[str]:
    imported = import_case(source)
    exported = export(compile_plan(imported.deployment), "vllm", ARGS)
    try:
        written = _as_written(source)
        again = parsed([MODEL, *shlex.split(exported.text(ARGS))])
    except RefusedError as error:
        yield f"vLLM refuses it: {error}"
        return
    unused = {_place(name) for name in imported.unused}
    first, second = _settings(written), _settings(again)
    for place in sorted(first.keys() | second.keys()):
        if place.partition(".")[0] in unused:
            continue
        if first.get(place) != second.get(place):
            yield f"{place}: {first.get(place)} as written, {second.get(place)} as exported"
    yield from _values(imported, again)


def _values(imported: Imported, arguments: Namespace) -> Iterator[str]:
    """The most read settings once more, without the exporter's names in between."""
    deployment = imported.deployment
    for value, place in (
        (deployment.scheduler.max_num_seqs, "max_num_seqs"),
        (deployment.scheduler.max_num_batched_tokens, "max_num_batched_tokens"),
        (deployment.model.max_model_len, "max_model_len"),
        (deployment.parallel.tensor_parallel_size, "tensor_parallel_size"),
        (deployment.parallel.data_parallel_size, "data_parallel_size"),
    ):
        if value is not None and getattr(arguments, place) != value:
            yield f"{place}: {value} in the Deployment, {getattr(arguments, place)} in vLLM"
    if (sizes := deployment.compilation.cudagraph_capture_sizes) is not None:
        found = arguments.compilation_config.cudagraph_capture_sizes
        if list(sizes) != list(found):
            yield f"cudagraph_capture_sizes: {list(sizes)} in the Deployment, {found} in vLLM"


def _place(flag: str) -> str:
    """Where argparse puts a flag."""
    known = grammar().table.get(flag)
    return (known.name if known else flag).lstrip("-").replace("-", "_")


def _settings(arguments: Namespace) -> dict[str, object]:
    """Every argument, those with configs of their own by each of their fields."""
    found: dict[str, object] = {}
    for place, value in vars(arguments).items():
        if is_dataclass(value):
            found.update({f"{place}.{part.name}": getattr(value, part.name, None) for part in fields(value)})
        elif isinstance(value, dict):
            found.update({f"{place}.{key}": item for key, item in value.items()})
        else:
            found[place] = value
    for flag, place in SEPARATE.items():
        # vLLM takes these into the config once the line is read.
        if (value := found.pop(flag, None)) is not None:
            found[place] = value
    return {place: value for place, value in found.items() if place not in NOT_COMPARED}


def _as_written(source: Path) -> Namespace:
    options = OPTIONS.get(case_name(source), {})
    launches = launches_in(source.read_text(), source.name, options.get("values", {}))
    launch = choose(launches, "vllm", options.get("name"), source.name)
    # What is not known has no effect on planning; as a port, any number will do.
    texts = [_UNKNOWN.sub("1", word.text) if word.unknown else word.text for word in launch.words]
    with TemporaryDirectory() as folder:
        words = list(_with_files(texts, launch, Path(folder)))
        with contextlib.chdir(source.parent):
            return parsed(words)


def _with_files(words: Sequence[str], launch: Launch, folder: Path) -> Iterator[str]:
    """The words, with files that the source itself holds written where they can be read."""
    for word in words:
        text = launch.files.get(word) or launch.files.get(os.path.basename(word))
        if text is None:
            yield word
            continue
        file = folder / os.path.basename(word)
        file.write_text(text)
        yield str(file)


def _not_refused(source: Path) -> Iterator[str]:
    with contextlib.suppress(RefusedError):
        _as_written(source)
        yield "the importer refuses it, vLLM's parser does not"
