"""``planner cache``: what is stored, whether it is sound, and how it is carried elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.answers import to_json
from planner.cli.blocks import Block, Row, heading
from planner.cli.cache_streams import export_to_stdout, refuse_terminal, stdin_as_file
from planner.cli.files import STDIO
from planner.cli.options import count, examples, not_empty, output_format
from planner.cli.render import show
from planner.cli.streams import write_stdout
from planner.describe import counted
from planner.documents.deployment import Json
from planner.documents.tree import shown

if TYPE_CHECKING:
    from cache.catalogue import Summary
    from cache.keys import Key
    from cache.maintenance import CheckReport, Pruned
    from cache.store import PlanCache
    from cache.transfer import Moved

DIGITS = 12
"""Digits of a key that lists show; they are enough to tell records apart."""
MEMBERS_NAMED = 5

SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SIZES |= {f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("kmgt", start=1)}
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgt]?i?)b?", re.IGNORECASE | re.ASCII)
_AGE = re.compile(r"([0-9]{1,9})\s*([smhdw])", re.IGNORECASE | re.ASCII)

A_WORD = not_empty("a word")
A_FILE = not_empty("the name of a file")

cache_option = click.option(
    "--cache",
    "directory",
    metavar="DIR",
    callback=not_empty("a directory"),
    help="The cache's directory instead of GRAPHPLAN_CACHE or the platform's place for caches.",
)


@click.group(
    "cache",
    invoke_without_command=True,
    epilog=examples("planner cache list", "planner cache check --fix", "planner cache prune --max-age 30d"),
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look after the cache of plans, captures, traffic and artifacts."""
    if ctx.invoked_subcommand is None:
        write_stdout(f"{ctx.get_help()}\n")


def _opened(directory: str | None) -> PlanCache:
    from cache.store import PlanCache

    return PlanCache(directory, create=False)


@command.command("list", epilog=examples("planner cache list --model qwen3 --gpu H200"))
@cache_option
@click.option(
    "--model", metavar="WORD", callback=A_WORD, help="Only records whose model's name has this in it."
)
@click.option("--gpu", metavar="WORD", callback=A_WORD, help="Only records of such a GPU.")
@click.option("--engine", metavar="WORD", callback=A_WORD, help="Only records of such an engine.")
@click.option(
    "--digest",
    metavar="HEX",
    callback=not_empty("hexadecimal digits"),
    help="Only records whose key, or whose plan's digest, begins so.",
)
@output_format("text", "json")
def list_records(
    directory: str | None,
    model: str | None,
    gpu: str | None,
    engine: str | None,
    digest: str | None,
    form: str,
) -> None:
    """List records, the last used first."""
    with _opened(directory) as cache:
        found = cache.find(model=model, gpu=gpu, engine=engine, digest_prefix=digest)
        if form == "json":
            write_stdout(to_json([_summary_json(summary) for summary in found]))
            return
        stats = cache.stats()
    total = f"{counted(sum(stats.records.values()), 'record')}, {size_text(stats.record_bytes)}"
    block = Block(tuple(_rows(found, time.time())), title="records", numbers=frozenset({6}))
    show((heading(f"{stats.directory}: {total}"), block))
    for name in stats.set_aside:
        show((heading(f"set aside: {name}"),), err=True)


def _rows(found: Iterable[Summary], now: float) -> Iterator[Row]:
    yield Row(("kind", "key", "model", "gpu", "engine", "family", "size", "used"))
    for summary in found:
        labels = summary.labels
        yield Row(
            (
                str(summary.key.kind),
                summary.key.digest[:DIGITS],
                labels.model or "-",
                labels.gpu or "-",
                labels.engine or "-",
                f"{labels.family} {labels.rank}" if labels.rank else labels.family or "-",
                size_text(summary.num_bytes),
                age_text(now - summary.used),
            )
        )


def _summary_json(summary: Summary) -> dict[str, Json]:
    from attrs import asdict

    return {
        "kind": str(summary.key.kind),
        "key": summary.key.digest,
        **asdict(summary.labels),
        "num_bytes": summary.num_bytes,
        "blob": summary.blob,
        "created": summary.created,
        "used": summary.used,
        "uses": summary.uses,
    }


@command.command(
    "show",
    epilog=examples(
        "planner cache show 3ffe8162",
        "planner cache show plans/3ffe8162 | planner explain - --num-reqs 4 --num-tokens 17",
    ),
)
@cache_option
@click.argument("key")
@output_format("yaml", "json")
def show_record(directory: str | None, key: str, form: str) -> None:
    """Print one record: a plan as the document that it is, anything else as JSON.

    KEY is the beginning of a record's key or of its plan's digest, as list shows it; kind/KEY asks for
    that kind only.
    """
    from cache.records import PlanRecord
    from planner.documents.load import load_plan
    from planner.documents.writer import dump_plan

    with _opened(directory) as cache:
        record = cache.look(_one_key(cache, key))
    if record is None:
        raise click.UsageError(f"{shown(key)} was removed a moment ago")
    if form == "yaml" and isinstance(record, PlanRecord):
        write_stdout(dump_plan(load_plan(record.document)))
    else:
        write_stdout(to_json(record.as_json()))


def _one_key(cache: PlanCache, text: str) -> Key:
    """The one record that ``text`` means.

    Raises:
        CacheError: there is none, or there are several.
    """
    from cache.errors import CacheError, Fault
    from cache.tables import Kind

    kinds = {str(kind): kind for kind in Kind}
    name, slash, digits = text.partition("/")
    if slash and name not in kinds:
        raise click.UsageError(f"{shown(name)} is no kind of record; the kinds are {', '.join(kinds)}")
    found = cache.find(kind=kinds.get(name) if slash else None, digest_prefix=digits if slash else text)
    if not found:
        raise CacheError(
            f"no record's key begins with {shown(text)}; planner cache list shows them", fault=Fault.MISSING
        )
    if len(found) > 1:
        some = ", ".join(f"{one.key.kind}/{one.key.digest[:DIGITS]}" for one in found[:MEMBERS_NAMED])
        more = ", …" if len(found) > MEMBERS_NAMED else ""
        raise CacheError(
            f"{shown(text)} means {len(found)} records: {some}{more}; give one of them", fault=Fault.INVALID
        )
    return found[0].key


@command.command("check", epilog=examples("planner cache check", "planner cache check --fix --format json"))
@cache_option
@click.option(
    "--fix", is_flag=True, help="Remove what is not as it was put; set an unreadable database aside."
)
@output_format("text", "json")
@click.pass_context
def check(ctx: click.Context, directory: str | None, fix: bool, form: str) -> None:
    """Read everything and say what is not as it was put. Exits with 1 if something is left so.

    Commands that use a cache verify what they read of it and nothing else: what is damaged in other
    places is found here alone.
    """
    from attrs import asdict

    from cache.maintenance import check_directory

    report = check_directory(directory, fix=fix)
    if form == "json":
        write_stdout(to_json({**asdict(report), "clean": report.is_clean}))
    else:
        show(tuple(_check_blocks(report)))
    ctx.exit(0 if report.is_clean else 1)


def _check_blocks(report: CheckReport) -> Iterator[Block]:
    sound = "all as they were put" if not report.problems else f"{counted(len(report.problems), 'problem')}"
    yield heading(f"{counted(report.records, 'record')} read, {sound}")
    if report.problems:
        yield Block(
            tuple(
                Row((problem.where, problem.what, problem.fix or "left as it is; --fix mends it"), "error")
                for problem in report.problems
            ),
            title="problems",
        )
    if report.leftovers:
        yield heading(
            f"{counted(report.leftovers, 'file')} of killed processes; planner cache prune removes them"
        )


@command.command(
    "prune",
    epilog=examples(
        "planner cache prune --max-size 2GiB --max-age 30d", "planner cache prune --max-records 100"
    ),
)
@cache_option
@click.option(
    "--max-size", metavar="SIZE", callback=lambda *given: _size(given[2]), help="Such as 500MB or 2GiB."
)
@click.option(
    "--max-age",
    metavar="TIME",
    callback=lambda *given: _age(given[2]),
    help="Since the last use, such as 12h or 30d.",
)
@click.option("--max-records", metavar="N", type=count(0), help="How many records may stay.")
def prune(directory: str | None, max_size: int | None, max_age: int | None, max_records: int | None) -> None:
    """Remove the least recently used records until the rest is within the limits.

    Without a limit, only files that killed processes left are removed.
    """
    with _opened(directory) as cache:
        pruned = cache.prune(max_bytes=max_size, max_age=max_age, max_records=max_records)
    _tell_removed(pruned)


@command.command("clear", epilog=examples("planner cache clear --cache /var/cache/graphplan"))
@cache_option
def clear(directory: str | None) -> None:
    """Remove all records and files; a database that cannot be read is set aside first."""
    from cache.errors import OF_THE_DATABASE, CacheError
    from cache.maintenance import check_directory

    try:
        with _opened(directory) as cache:
            pruned = cache.clear()
    except CacheError as error:
        if error.fault not in OF_THE_DATABASE:
            raise
        show(tuple(_check_blocks(check_directory(directory, fix=True))))
    else:
        _tell_removed(pruned)


def _tell_removed(pruned: Pruned) -> None:
    show((heading(f"removed {counted(pruned.records, 'record')}, {size_text(pruned.num_bytes)}"),))


@command.command(
    "export",
    epilog=examples(
        "planner cache export cache.zip",
        "planner cache export one.zip 3ffe8162",
        "planner cache export s3://bucket/graphplan",
        "planner cache export - | ssh host planner cache import -",
    ),
)
@cache_option
@click.argument("target", metavar="FILE|URL|-", callback=A_FILE)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
def export(directory: str | None, target: str, keys: tuple[str, ...]) -> None:
    """Write records, by default all, and their artifacts into one file, or into the folder at a URL.

    With - the file goes to standard output.

    What was used when is not in it; the same records give the same bytes. To a URL only what is
    missing there moves, and a transfer that was cut off goes on.
    """
    from cache.transfer_remote import is_url

    if target == STDIO:
        refuse_terminal()
    with _opened(directory) as cache:
        chosen = [_one_key(cache, key) for key in keys] if keys else None
        if is_url(target):
            from cache.transfer import export_to

            _tell_moved("exported", export_to(cache, target, chosen))
            return
        number = export_to_stdout(cache, chosen) if target == STDIO else cache.export(Path(target), chosen)
    show((heading(f"exported {counted(number, 'record')}"),), err=target == STDIO)


@command.command(
    "import",
    epilog=examples(
        "planner cache import cache.zip --cache /var/cache/graphplan",
        "planner cache import https://artifacts.example.com/graphplan",
    ),
)
@cache_option
@click.argument("source", metavar="FILE|URL|-", callback=A_FILE)
def import_(directory: str | None, source: str) -> None:
    """Take in what export wrote, after verifying it. Records that are there already stay.

    With - the file comes from standard input. No cache is made for what cannot be imported.

    From a URL only what is missing here moves, and a transfer that was cut off goes on.
    """
    from cache.archive import require_archive
    from cache.store import PlanCache
    from cache.transfer_remote import is_url

    if is_url(source):
        from cache.transfer import import_from, require_folder

        require_folder(source)
        with PlanCache(directory) as cache:
            _tell_moved("imported", import_from(cache, source))
        return
    with stdin_as_file() if source == STDIO else nullcontext(Path(source)) as file:
        require_archive(file)
        with PlanCache(directory) as cache:
            imported = cache.import_(file)
    kept = f", {imported.kept} there already" if imported.kept else ""
    show((heading(f"imported {counted(imported.added, 'record')}{kept}"),))


def _tell_moved(what: str, moved: Moved) -> None:
    kept = f", {moved.kept} there already" if moved.kept else ""
    spared = f" ({size_text(moved.kept_bytes)} there already)" if moved.kept_bytes else ""
    size = size_text(moved.num_bytes)
    show((heading(f"{what} {counted(moved.added, 'record')}{kept}; {size} moved{spared}"),))


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None or found[2].casefold() not in SIZES:
        raise click.BadParameter(f"{shown(text)} is no size; write such as 500MB or 2GiB")
    return int(found[1]) * SIZES[found[2].casefold()]


def _age(text: str | None) -> int | None:
    if text is None:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{shown(text)} is no time; write such as 90m, 12h or 30d")
    return int(found[1]) * SECONDS[found[2].casefold()]


def size_text(num_bytes: int) -> str:
    """``12.3 MiB``."""
    size, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007 - the last one is used after the loop
        if size < 1024:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def age_text(seconds: float) -> str:
    """``3 h ago``; what is said to be of the future was a moment ago."""
    for unit, length in reversed(SECONDS.items()):
        if unit != "w" and seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "now"
