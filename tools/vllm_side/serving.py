"""vLLM's own parser of ``vllm serve``, and the config that it makes of a command line."""

from __future__ import annotations

import contextlib
import io
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser


class RefusedError(Exception):
    """vLLM does not take a command line; the text is its own reason."""


@cache
def _parser() -> FlexibleArgumentParser:
    whole = FlexibleArgumentParser()
    serve = whole.add_subparsers(dest="subparser").add_parser("serve")
    make_arg_parser(serve)
    return whole


def parsed(words: Sequence[str]) -> Namespace:
    """What the parser makes of the words after ``vllm serve``."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return _parser().parse_args(["serve", *words])
    except SystemExit:
        raise RefusedError(told.getvalue().strip().rpartition("\n")[2]) from None
    except Exception as error:  # noqa: BLE001 - whatever it is, the line is refused
        raise RefusedError(f"{type(error).__name__}: {error}") from None


def engine_config(arguments: Namespace, model: str, env: Mapping[str, str]) -> VllmConfig:
    """The config of the server that ``arguments`` start with ``model``."""
    arguments.model = model
    with environment(env):
        try:
            args = AsyncEngineArgs.from_cli_args(arguments)
            return args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        except Exception as error:  # noqa: BLE001 - whatever it is, the line is refused
            raise RefusedError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None


@contextlib.contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """Runs with the variables of ``env``, and without them afterwards."""
    before: dict[str, Any] = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
