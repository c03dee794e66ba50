"""What an export is: settings of one engine, and what its user has to know beside them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from planner.documents.deployment import Json
from planner.documents.writer import dump_settings
from planner.engines.shared import SGLANG
from planner.errors import ExportError
from planner.importers.source import COMMANDS

ARGS, JSON, CONFIG = "args", "json", "config"
FORMATS = (ARGS, JSON, CONFIG)
MODEL_PATH = "model-path"
"""SGLang's flag for the model; the others' is the first argument."""


@frozen(kw_only=True)
class Exported:
    """Settings by the keys of the engine's config file, each of which is also a flag without its dashes.

    ``env`` has variables that no file and no flag sets. ``notes`` are remarks for the user.
    ``without_flag`` are keys that only the file takes, each with the setting it comes from.
    """

    engine: str
    settings: Mapping[str, Json]
    env: Mapping[str, str] = field(factory=dict)
    notes: tuple[str, ...] = ()
    without_flag: Mapping[str, str] = field(factory=dict)

    def text(self, form: str) -> str:
        """The export in one of the ``FORMATS``.

        Raises:
            ExportError: ``args`` is asked for, and a setting has no flag.
        """
        if form == CONFIG:
            return dump_settings(self.settings) if self.settings else "{}\n"
        if form == JSON:
            return json.dumps(self.settings, indent=1) + "\n"
        if self.without_flag:
            key, path = next(iter(self.without_flag.items()))
            raise ExportError(
                f"{self.engine} has no flag for {key}; take --format config, whose file has it",
                fields=(path,),
            )
        return shlex.join(arguments(self.settings)) + "\n"

    def command(self, model: str) -> str:
        """The whole command line that serves ``model``, with the environment in front.

        Raises:
            ExportError: a setting has no flag.
        """
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        words.append(COMMANDS[self.engine])
        settings = dict(self.settings)
        if self.engine == SGLANG:
            settings[MODEL_PATH] = model
        else:
            # Behind a list of values it would be taken for one of them.
            words.append(shlex.quote(model))
        words.append(evolve(self, settings=settings).text(ARGS).removesuffix("\n"))
        return " ".join(filter(None, words)) + "\n"


@define
class Outgoing:
    """An export while it is collected."""

    settings: dict[str, Json] = field(factory=dict)
    notes: list[str] = field(factory=list)
    env: dict[str, str] = field(factory=dict)
    without_flag: dict[str, str] = field(factory=dict)

    def finish(self, engine: str) -> Exported:
        """The export, as it is then."""
        return Exported(
            engine=engine,
            settings=self.settings,
            env=self.env,
            notes=tuple(self.notes),
            without_flag=self.without_flag,
        )


def arguments(settings: Mapping[str, Json]) -> Iterator[str]:
    """The words of a command line that ``settings`` stand for."""
    for key, value in settings.items():
        flag = f"--{key}"
        if value is True:
            yield flag
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from (flag, *(_text(item) for item in value))
        else:
            text = _text(value)
            # A parser would take such a value for a flag.
            yield from [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
