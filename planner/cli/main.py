"""The ``planner`` program: finds the command, and turns every error into one line and an exit code.

A command's module is imported when the command is called, so that each pays for its own imports
only.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from planner.cli.options import examples
from planner.cli.streams import CLOSED, OutputError, drop, unwritten, write_stderr, write_stdout
from planner.errors import GraphplanError

COMMANDS = (
    "compile",
    "check",
    "import",
    "export",
    "explain",
    "estimate",
    "dispatch",
    "diff",
    "traffic",
    "report",
    "capture",
    "cache",
    "schema",
)

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CommandLine(click.Group):
    """A group that loads commands on demand and reports all errors in one way."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands in the order in which a user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command ``cmd_name``, from the module of that name."""
        if cmd_name not in COMMANDS:
            return None
        # A module cannot have the name of a keyword.
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"planner.cli.{module}").command
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the program and exits; with ``standalone_mode=False`` click's errors are raised."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            _complain(_usage_message(error))
            code = error.exit_code
        except click.Abort:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the arguments, which may already print: the help, or the version."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:  # noqa: BLE001 - as in ``invoke``
            raise _exit_after(error, debug=False) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command of ``ctx``; an error of any kind ends in its exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - the last resort: no user sees a traceback unasked
            raise _exit_after(error, debug=bool(ctx.params.get("debug"))) from None


def _exit_after(error: Exception, *, debug: bool) -> Exception:
    """What ends the program after ``error``, once the user was told; click's own errors end it themselves."""
    if isinstance(error, click.exceptions.Exit) and error.exit_code == 0 and sys.stdout is None:
        # No command ends like this without a word: this was click, which shows its help to nobody then.
        error = OutputError(CLOSED)
    if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
        return error
    if debug:
        write_stderr("".join(traceback.format_exception(error)))
    if isinstance(error, BrokenPipeError):
        drop(sys.stdout)
        return click.exceptions.Exit(EXIT_BROKEN_PIPE)
    if isinstance(error, OSError) and error.filename is None:
        # Files are read and written under their names: this was click, printing its help.
        error = unwritten(error)
    if isinstance(error, GraphplanError):
        _complain(str(error))
        return click.exceptions.Exit(error.exit_code)
    reason = str(error).partition("\n")[0]
    _complain(
        f"internal error: {type(error).__name__}: {reason}; "
        "please report it, with what `planner --debug …` prints"
    )
    return click.exceptions.Exit(EXIT_INTERNAL)


def _complain(message: str) -> None:
    write_stderr(f"planner: error: {message}\n")


def _usage_message(error: click.ClickException) -> str:
    """What click found wrong, on one line, and where the usage is described."""
    message = " ".join(error.format_message().split()).rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see `{ctx.command_path} --help`" if ctx else message


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("graphplan")
    except PackageNotFoundError:
        installed = "(not installed)"
    write_stdout(f"planner {installed}\n")
    ctx.exit()


@click.command(
    "planner",
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "planner compile deployment.yaml -o plan.yaml",
        "planner explain plan.yaml --num-reqs 3 --num-tokens 3",
        "planner capture plan.yaml --device cpu --shrink",
    )
    + "\n\n\b\nExit codes: 0 fine, 1 findings or differences, 2 bad input or usage,\n"
    "3 this machine cannot do it, 70 an internal error.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of errors; goes before the command.")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001 - read from the context on errors
    """Plan the CUDA graphs of an LLM server, without a GPU and without the server.

    Compile a deployment into the exact list of graphs that its server would capture, and ask the
    plan which graph serves a batch, what changed, and what is wrong with it.
    """
    if ctx.invoked_subcommand is None:
        write_stdout(f"{ctx.get_help()}\n")


if __name__ == "__main__":
    main(prog_name="planner")
