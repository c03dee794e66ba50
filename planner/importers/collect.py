"""Collecting the sections of a Deployment from flags, for the importer of each engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NoReturn

from attrs import define, field

from planner.documents.deployment import API_VERSION, Json
from planner.documents.load import DEPLOYMENT, load_deployment
from planner.documents.plan import Finding, Severity
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.flags import Given, flag_error, flag_key
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.model_configs import config_in, find_model_config
from planner.importers.words import Word, refusal

MODEL = "model"
SPECULATIVE = "speculative"
_IN_CONTAINER = ("./", "../", "/", "~")


@define(kw_only=True)
class Collector:
    """Sections of a Deployment, which flag gave which key of them, and what the user should know."""

    launch: Launch
    completion: Completion
    path: str | None
    sections: dict[str, dict[str, Json]] = field(factory=dict)
    origins: dict[str, Given] = field(factory=dict)
    notes: list[str] = field(factory=list)
    unused: list[str] = field(factory=list)
    findings: list[Finding] = field(factory=list)

    def put(self, section: str, key: str, value: Json, given: Given) -> None:
        """Sets one key as a flag gives it.

        Raises:
            DocumentError: another flag gives it too, or its value is not known.
        """
        if given.unknown is not None:
            raise refusal(given.unknown, self.path, flag_key(given.where))
        dotted = f"{section}.{key}"
        if key in self.sections.get(section, {}):
            first = self.origins[dotted].where
            raise flag_error(given.where, f"and {flag_key(first)} both give {dotted}; drop one", self.path)
        self.sections.setdefault(section, {})[key] = value
        self.origins[dotted] = given
        self._repeated(key, value, given)

    def _repeated(self, key: str, value: Json, given: Given) -> None:
        """Remarks on a list that has one of its sizes twice, be it the value itself or within a mapping."""
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self._repeated(name, inner, given)
        elif isinstance(value, list):
            numbers = Counter(item for item in value if type(item) is int)
            twice = [str(number) for number, times in numbers.items() if times > 1]
            if twice:
                flag = flag_key(given.where)
                where = flag if flag.replace("-", "_").endswith(key) else f"{flag}: {key}"
                self.notes.append(
                    f"{where} lists {', '.join(twice)} more than once; each size is captured once"
                )

    def environment(self, read: frozenset[str]) -> None:
        """Keeps the variables that planning reads; others, which may be secrets, go into no document.

        What the user says beside the source wins, and may stand in a file that is not read.

        Raises:
            DocumentError: the value of one is not known.
        """
        said = {
            name: Word(self.completion.values[name])
            for name in sorted(read)
            if name in self.completion.values
        }
        for name, word in {**self.launch.env, **said}.items():
            if name not in read:
                self.unused.append(name)
            elif word.unknown:
                raise refusal(word, self.path, name)
            else:
                self.sections.setdefault("engine", {}).setdefault("env", {})[name] = word.text

    def config(self, section: str, model: Json, revision: Json = None) -> None:
        """Finds the config of the model in ``section``, from a file that the user names or by its name."""
        option = "--model-config" if section == MODEL else "--draft-config"
        written = self.completion.model_config if section == MODEL else self.completion.draft_config
        if written is not None:
            self.sections.setdefault(section, {})["config"] = config_in(written)
        elif isinstance(model, str):
            self._find(section, model, revision if isinstance(revision, str) else None, option)
        elif section == MODEL:
            self._unknown_model("the command line names no model", option)

    def finish(self, model: str | None) -> Imported:
        """The Deployment of what was collected.

        Raises:
            DocumentError: no Deployment takes one of its values.
        """
        if self.completion.device is not None:
            self.sections["device"] = {"name": self.completion.device}
        document: dict[str, Json] = {"apiVersion": API_VERSION, "kind": DEPLOYMENT}
        name = self.launch.title or (model and (PurePosixPath(model).name.lower() or model))
        if name is not None:
            document["name"] = name
        try:
            deployment = load_deployment({**document, **self.sections}, path=self.path)
        except DocumentError as error:
            self._refuse(error)
        lines = {
            key: given.where.line
            for key, given in self.origins.items()
            if given.where.line is not None and given.where.path is None
        }
        return Imported(
            deployment=deployment,
            name=self.launch.name,
            notes=(*self.launch.remarks, *self.notes),
            unused=tuple(dict.fromkeys(self.unused)),
            findings=tuple(self.findings),
            line=self.launch.where.line,
            lines=lines,
        )

    def error(self, given: Given, message: str) -> DocumentError:
        """The error that something is wrong with what a flag gives."""
        return flag_error(given.where, message, self.path)

    def known_text(self, word: Word) -> str:
        """The text of a word that has to be known.

        Raises:
            DocumentError: it is not.
        """
        if word.unknown:
            raise refusal(word, self.path)
        return word.text

    def warn(self, code: str, message: str, fix: str | None = None) -> None:
        """Adds a finding for the plan."""
        self.findings.append(Finding(severity=Severity.WARNING, code=code, message=message, fix=fix))

    def _find(self, section: str, model: str, revision: str | None, option: str) -> None:
        # A container's paths mean nothing outside of it.
        is_elsewhere = self.launch.is_contained and model.startswith(_IN_CONTAINER)
        found = None if is_elsewhere else find_model_config(model, self.completion.env, revision)
        if found is not None:
            self.notes.append(f"{printable(model)}: {found.origin}")
            self.sections.setdefault(section, {})["config"] = str(found.path)
            return
        at = f" at revision {printable(revision)}" if revision else ""
        message = f"no config.json is known for {printable(model)}{at}"
        self.notes.append(f"{option}: {message}; give one")
        self._unknown_model(f"{message}; the plan is that of a model without special needs", option)

    def _unknown_model(self, message: str, option: str) -> None:
        self.warn("unknown-model", message, f"{option} config.json")

    def _refuse(self, error: DocumentError) -> NoReturn:
        """Raises the loader's error with the flag in place of the key that the flag gave."""
        key = error.key or ""
        origin = next((given for start, given in self.origins.items() if _is_under(key, start)), None)
        if origin is None:
            raise error
        where, flag = origin.where, flag_key(origin.where)
        if origin.flag.json:
            flag = f"{flag}: {key}"
        raise DocumentError(
            error.message, path=where.path or error.path, line=where.line, column=where.column, key=flag
        ) from None


def _is_under(key: str, start: str) -> bool:
    return key == start or key.startswith((f"{start}.", f"{start}["))


def whole(collector: Collector, section: str, given: Given) -> None:
    """Sets every key of a section that a flag gives as one mapping.

    Raises:
        DocumentError: the flag gives none, or another flag gives a key of it too.
    """
    if given.unknown is not None:
        raise refusal(given.unknown, collector.path, flag_key(given.where))
    if given.value is None:
        return
    if not isinstance(given.value, Mapping):
        raise collector.error(given, "needs a mapping in JSON, such as '{\"key\": 1}'")
    collector.sections.setdefault(section, {})
    collector.origins.setdefault(section, given)
    for key, value in given.value.items():
        collector.put(section, key, value, given)
