"""The ``planner`` program: finds the command, and turns every error into one line and an exit code.

A command's module is imported when the command is called, so that each pays for its own imports
only.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from planner.errors import GraphplanError

COMMANDS = ("compile", "check", "explain", "dispatch", "diff", "schema")

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
        command: click.Command = import_module(f"planner.cli.{cmd_name}").command
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
            _complain(_usage_message(error), "planner")
            code = error.exit_code
        except click.Abort:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command of ``ctx``; an error of any kind ends in its exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except GraphplanError as error:
            _fail(ctx, str(error), error.exit_code)
        except BrokenPipeError:
            _drop_stdout()
            ctx.exit(EXIT_BROKEN_PIPE)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - the last resort: no user sees a traceback unasked
            reason = str(error).partition("\n")[0]
            _fail(
                ctx,
                f"internal error: {type(error).__name__}: {reason}; "
                "please report it, with what `planner --debug …` prints",
                EXIT_INTERNAL,
            )


def _fail(ctx: click.Context, message: str, exit_code: int) -> NoReturn:
    if ctx.params.get("debug"):
        traceback.print_exc()
    _complain(message, "planner")
    ctx.exit(exit_code)


def _complain(message: str, program: str) -> None:
    click.echo(f"{program}: error: {message}", err=True)


def _usage_message(error: click.ClickException) -> str:
    """What click found wrong, on one line, and where the usage is described."""
    message = " ".join(error.format_message().split()).rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see `{ctx.command_path} --help`" if ctx else message


def _drop_stdout() -> None:
    """Points standard output nowhere, so that the interpreter's last flush has no reader to miss."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("graphplan")
    except PackageNotFoundError:
        installed = "(not installed)"
    click.echo(f"planner {installed}")
    ctx.exit()


@click.command(
    "planner",
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExit codes: 0 fine, 1 findings or differences, 2 bad input or usage,\n"
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
        click.echo(ctx.get_help())


if __name__ == "__main__":
    main(prog_name="planner")
