"""Write planner/importers/sglang-0.5.23-flags.json from SGLang's own source, which is read and never run.

Usage: python tools/make_sglang_flags.py FOLDER [--check]

FOLDER is the package ``sglang`` as its wheel holds it (``pip download --no-deps sglang==0.5.23``, then
``unzip``). A flag is there for every field of the classes under ``srt/arg_groups/fields`` that is
annotated with what its option takes, and for every ``add_argument`` of ``srt/server_args.py``. With
``--check``, nothing is written, and the exit code is 1 if the table is another.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "planner/importers/sglang-0.5.23-flags.json"

_SWITCHES = ("store_true", "DeprecatedStoreTrueAction", "DeprecatedStoreNoneAction")
_NEGATABLE = "BooleanOptionalAction"
_VALUES = {"+": "many", "*": "any", "?": "optional"}
_SIZES = frozenset({"human_readable_int"})
_JSON = frozenset({"loads", "parse_cuda_graph_config_arg"})


def main(package: Path, *, check: bool) -> int:
    """Write the table, or compare it with the one that is there."""
    rows = sorted(flags_of(package / "srt"), key=lambda row: str(row["spellings"][0]))
    text = "[\n" + ",\n".join(json.dumps(row, sort_keys=True) for row in rows) + "\n]\n"
    if check:
        return int(text != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(text, encoding="utf-8")
    return 0


def flags_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The flags of SGLang's server, each without what is at its default."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((folder / "arg_groups" / "fields").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and (row := of_field(node)) is not None:
                found[row["field"]] = row
    for node in ast.walk(ast.parse((folder / "server_args.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _name(node.func) == "add_argument":
            row = of_call(node)
            found.setdefault(row["field"], row)
    yield from found.values()


def of_field(node: ast.AnnAssign) -> dict[str, Any] | None:
    """The flag of a field that is annotated as ``A[type, "help"]`` or ``A[type, Arg(...)]``."""
    hint, target = node.annotation, node.target
    if not (isinstance(hint, ast.Subscript) and _name(hint.value) == "A" and isinstance(target, ast.Name)):
        return None
    if not isinstance(hint.slice, ast.Tuple):
        return None
    kind, *rest = hint.slice.elts
    call = next((item for item in rest if isinstance(item, ast.Call) and _name(item.func) == "Arg"), None)
    if call is None and not any(isinstance(item, ast.Constant | ast.JoinedStr | ast.BinOp) for item in rest):
        return None
    options = {keyword.arg: keyword.value for keyword in call.keywords} if call is not None else {}
    if _literal(options.get("no_cli")):
        return None
    name = _literal(options.get("cli_name")) or f"--{target.id.replace('_', '-')}"
    spellings = [name, *(_literal(options.get("aliases")) or [])]
    return row_of(target.id, spellings, options, _inner(kind))


def of_call(node: ast.Call) -> dict[str, Any]:
    """The flag of one ``add_argument``."""
    options = {keyword.arg: keyword.value for keyword in node.keywords}
    spellings = [str(_literal(argument)) for argument in node.args]
    field = spellings[0].removeprefix("--").replace("-", "_")
    return row_of(field, spellings, options, options.get("type"))


def row_of(
    field: str, spellings: list[str], options: dict[str | None, ast.expr], kind: ast.expr | None
) -> dict[str, Any]:
    """One row of the table; ``kind`` is the type of the value."""
    row: dict[str, Any] = {"field": field, "spellings": spellings}
    action = options.get("action")
    named = _literal(action) or _name(action)
    parser, nargs = _name(options.get("type_parser")), _literal(options.get("nargs"))
    nargs = nargs or _entry(options.get("action_kwargs"), "nargs")
    is_list = isinstance(kind, ast.Subscript) and _name(kind.value) in ("List", "list")
    if named == _NEGATABLE:
        row["values"] = "none"
        row["negative"] = [f"--no-{spelling.removeprefix('--')}" for spelling in spellings]
        row["spellings"] = [*spellings, *row["negative"]]
    elif named in _SWITCHES or (action is None and _name(kind) == "bool" and not parser):
        row["values"] = "none"
    elif parser in _JSON:
        row["json"] = True
    elif nargs in _VALUES or (is_list and not parser):
        row["values"] = _VALUES[nargs or "+"]
    of_item = kind.slice if is_list and isinstance(kind, ast.Subscript) else kind
    if parser in _SIZES:
        row["type"] = "size"
    elif "values" not in row or row["values"] != "none":
        text = parser or _name(of_item)
        if text in ("int", "float") and "json" not in row:
            row["type"] = text
    return row


def _inner(kind: ast.expr) -> ast.expr:
    """The type in ``Optional[...]`` or ``... | None``."""
    if isinstance(kind, ast.Subscript) and _name(kind.value) == "Optional":
        return kind.slice
    if isinstance(kind, ast.BinOp) and isinstance(kind.right, ast.Constant):
        return kind.left
    return kind


def _entry(node: ast.expr | None, key: str) -> Any:
    """The literal under ``key`` of a dictionary that need not be one as a whole."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return next((_literal(value) for name, value in pairs if _literal(name) == key), None)


def _name(node: ast.expr | None) -> str | None:
    """The last name of ``a.b.c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal, ``None`` where it is computed."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), check="--check" in sys.argv[2:]))
