"""Remarks on whether, how often and as what a script starts a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, field

from planner.documents.tree import printable
from planner.importers.blocks import Command
from planner.importers.detect import ASSIGNMENT
from planner.importers.words import Word


def repetition(command: Command, calls: Mapping[str, int]) -> Iterator[str]:
    """The remark that a command may run more than once, or never; ``calls`` counts those by name."""
    body = command.body
    if body is None:
        return
    place = f"line {command.words[0].line}: the server is started in the"
    if body.function is None:
        yield f"{place} loop of line {command.body_line}, which may start several; one is imported"
        return
    times = calls.get(body.function, 0)
    if times != 1:
        often = f"called {times} times; one is imported" if times else "never called here"
        yield f"{place} function {printable(body.function)}, which is {often}"


@define
class Doubts:
    """What may keep a script from starting a server as it stands, while its commands are followed one by one.

    ``ended`` has the word that ends the script on each path, ``aliases`` the line of each.
    """

    ended: dict[tuple[int, ...], Word] = field(factory=dict)
    functions: set[str] = field(factory=set)
    aliases: dict[str, int | None] = field(factory=dict)

    def follow(self, command: Command) -> None:
        """Takes in a command that stands in front of the next."""
        first, *more = command.run
        if first.text == "exit" or (first.text == "exec" and more):
            self.ended.setdefault(command.path, first)
        elif first.text == "alias":
            self.aliases.update((word.text.partition("=")[0], word.line) for word in more if "=" in word.text)
        if command.body is not None and command.body.function is not None:
            self.functions.add(command.body.function)

    def of(self, server: Command) -> Iterator[str]:
        """Remarks on a command that starts a server."""
        line = server.words[0].line
        if server.condition_line is not None:
            condition = f"the condition of line {server.condition_line} is met, which is not tested"
            yield f"line {line}: the server is started only if {condition}"
        paths = (server.path[:length] for length in range(len(server.path) + 1))
        end = next((self.ended[path] for path in paths if path in self.ended), None)
        if end is not None:
            yield f"line {end.line}: {end.text} ends the script before the server of line {line} is started"
        program = next((word.text for word in server.run if not ASSIGNMENT.fullmatch(word.text)), "")
        if program in self.functions:
            yield f"line {line} calls {printable(program)}, a function of the script, which is not followed"
        if program in self.aliases:
            yield f"line {self.aliases[program]}: alias {printable(program)} is not followed"
