"""The stress of transfers at a size for CI: some MiB, killed a few times on each way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cache.processes import PROJECT


def test_what_was_cut_off_goes_on_and_arrives_whole(tmp_path: Path) -> None:
    size = ("--mebibytes", "40", "--interruptions", "3")
    done = subprocess.run(
        [sys.executable, "tools/stress_transfer.py", *size, "--directory", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    for way in ("export_to_folder", "import_from_folder", "import_over_http"):
        assert report[way]["interruptions"] == 3
        assert report[way]["unsound_after_a_kill"] == 0
    assert report["import_over_http"]["arrived"]
