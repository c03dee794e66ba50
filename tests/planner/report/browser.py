"""A headless Chromium, driven over its DevTools pipe: what a page asks for, complains of and measures."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
IN_BROWSER, OUT_OF_BROWSER = 3, 4
"""The descriptors on which Chromium reads and writes DevTools messages, each ended by a zero byte."""


def find_browser() -> str | None:
    """The Chromium of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


PATIENCE = 60
"""Seconds after which a browser that says nothing has failed."""


class Browser:
    """One page in a browser. ``events`` are all messages that it sent unasked."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """What the browser answers to ``method``."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, path: Path, *, width: int, scheme: str) -> None:
        """Shows the file at ``path`` in a window of ``width`` and waits until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these names since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            chunk = os.read(self._answers, 1 << 16)
            assert chunk, "the browser ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """The browser ``program`` with an empty profile in the folder ``profile``."""
    (commands_out, commands_in), (answers_out, answers_in) = os.pipe(), os.pipe()

    def connect() -> None:
        # High numbers first: either pipe may already lie on one of the two descriptors.
        reading, writing = os.dup(commands_out), os.dup(answers_in)
        os.dup2(reading, IN_BROWSER)
        os.dup2(writing, OUT_OF_BROWSER)

    process = subprocess.Popen(
        [program, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=connect,  # noqa: PLW1509 - tests have no threads
        close_fds=False,
    )
    try:
        os.close(commands_out)
        os.close(answers_in)
        yield Browser(commands_in, answers_out)
    finally:
        process.terminate()
        process.wait(30)
        os.close(commands_in)
        os.close(answers_out)
