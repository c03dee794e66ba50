"""The stress of the cache at a size for CI: many processes at once, killed ones, disks without room."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cache.processes import PROJECT


def test_nothing_that_was_put_is_lost(tmp_path: Path) -> None:
    size = ("--processes", "3", "--puts", "15", "--kills", "4")
    done = subprocess.run(
        [sys.executable, "tools/stress_cache.py", *size, "--directory", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["many_at_once"]["lost"] == report["many_at_once"]["lost_counts"] == 0
    assert report["killed"]["puts_that_had_returned"] > 0
    assert report["full_disk"]["file_size_limit"]["fault"] == "full"
