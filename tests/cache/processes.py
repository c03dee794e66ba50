"""Other processes for tests: ended with the test at the latest, never waited for without a limit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 30


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    db.execute(statement).fetchone()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(database: Path, *statements: str) -> Iterator[None]:
    """Another process that runs SQL on a database and keeps what locks it has then."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(database), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
