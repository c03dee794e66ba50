"""What a vLLM server printed at start: its engine's config, and the graphs that it captured.

A log is a stranger's, of any length: it is read once, line by line, and what is kept is bounded.

Source: vLLM 0.33 (messages of the engine core, of both model runners and of the encoder's graphs).
The V2 runner captures twice: a trial that measures memory, of two FULL graphs of the target at most
and of all others, before the size of the KV cache is known, and then everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import Factory, define, frozen

from planner.documents.plan import DRAFT, TARGET
from planner.modes import AttentionSupport, CUDAGraphMode, Runner
from planner.rules.draft_autoregressive import DRAFT_DECODE, DRAFT_PREFILL
from planner.rules.encoder import ENCODER
from planner.server_config import BEGINNING, ServerConfig, server_config

LONGEST_LINE = 1 << 20
"""Bytes of a line that are looked at together; an engine's config has some thousand."""

TRIAL_GRAPHS = 2
MOST_RANKS = 1_000
LONGEST_REASON = 240

OUT_OF_MEMORY = "out of memory"
ENGINE_FAILED = "the engine failed"


@frozen(kw_only=True)
class CapturedGraphs:
    """The graphs of one family and mode: how many there were to capture, and were captured."""

    family: str
    mode: CUDAGraphMode
    captured: int
    total: int


@frozen(kw_only=True)
class RankCapture:
    """What one rank needed for its capture: seconds, and GiB of memory where it says so."""

    process: str
    seconds: float
    gib: float | None


@frozen(kw_only=True)
class ServerLog:
    """What the last of the ``starts`` in a log says, ``None`` where it says nothing.

    ``config`` is what the engine began with. ``cudagraph_mode`` is the one in force in the end;
    ``lowered_because`` and ``attention_support`` are the engine's own words where it is another.
    """

    starts: int
    config: ServerConfig
    runner: Runner | None
    cudagraph_mode: CUDAGraphMode | None
    lowered_because: str | None
    attention_support: AttentionSupport | None
    graphs: tuple[CapturedGraphs, ...]
    captures_nothing: bool
    ranks: tuple[RankCapture, ...]
    failure: str | None
    is_past_trial: bool

    @property
    def is_captured(self) -> bool:
        """Whether a rank came to the end of its capture."""
        return bool(self.ranks)

    def graphs_of(self, family: str, mode: CUDAGraphMode) -> CapturedGraphs | None:
        """The graphs of ``family`` in ``mode``."""
        return next((found for found in self.graphs if (found.family, found.mode) == (family, mode)), None)

    def may_be_of_trial(self, graphs: CapturedGraphs) -> bool:
        """Whether ``graphs`` may be those that were only captured to measure memory."""
        is_sampled = graphs.family == TARGET and graphs.mode is CUDAGraphMode.FULL
        return is_sampled and not self.is_past_trial and graphs.total <= TRIAL_GRAPHS


def read_server_log(lines: Iterable[bytes]) -> ServerLog | None:
    """What the last start in ``lines`` says; ``None`` where nothing in them is of a vLLM server.

    A line may end in any way, and one longer than ``LONGEST_LINE`` may come in pieces.
    """
    start = _Start()
    for line in lines:
        # NUL bytes are what UTF-16 is more than ASCII; a progress bar is written over itself with \r.
        for piece in line.replace(b"\0", b"").split(b"\r"):
            if any(marker in piece for marker in _MARKERS):
                for text in _messages(piece.decode("utf-8", "replace")):
                    start = _taken(start, text)
    return start.told() if start.says_something else None


@define
class _Start:
    """What is known of one start of the server, while its log is read."""

    number: int = 0
    engines: set[str] = Factory(set)
    config: ServerConfig = Factory(ServerConfig)
    runner: Runner | None = None
    mode: CUDAGraphMode | None = None
    lowered_because: str | None = None
    support: AttentionSupport | None = None
    graphs: dict[tuple[str, CUDAGraphMode], tuple[int, int]] = Factory(dict)
    announced: dict[CUDAGraphMode, int] = Factory(dict)
    caches: set[str | None] = Factory(set)
    is_dead: bool = False
    captures_nothing: bool = False
    ranks: dict[str, RankCapture] = Factory(dict)
    failure: str | None = None
    says_something: bool = False

    def told(self) -> ServerLog:
        """The facts that count once the log has ended."""
        # An engine that fails before it has a KV cache has captured for the trial only.
        is_trial = self.is_dead and not self.caches
        ranks = () if is_trial else tuple(self.ranks.values())
        graphs = {} if is_trial else self.graphs
        if ranks and all(family != TARGET for family, _ in graphs):
            # Bars can be turned off; the V1 runner announces beforehand what it will capture.
            graphs = {(TARGET, mode): (number, number) for mode, number in self.announced.items()} | graphs
        return ServerLog(
            starts=max(self.number, 1),
            config=self.config,
            runner=self.runner,
            cudagraph_mode=self.mode,
            lowered_because=self.lowered_because,
            attention_support=self.support,
            graphs=tuple(
                CapturedGraphs(family=family, mode=mode, captured=captured, total=total)
                for (family, mode), (captured, total) in graphs.items()
            ),
            captures_nothing=self.captures_nothing,
            ranks=ranks,
            failure=None if ranks else self.failure,
            is_past_trial=bool(self.caches),
        )


# How a line comes to be: colours, a collector's JSON around it, the process that it is of.

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,30}[A-Za-z]")
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload")
_PROCESS = re.compile(r"\(((?:EngineCore|Worker|VllmWorker)[\w =.-]{0,60}?) pid=\d{1,10}\)", re.ASCII)
_DATA_PARALLEL_RANK = re.compile(r"_DP(\d{1,6})", re.ASCII)
_PREFIX_LENGTH = 400


def _messages(text: str) -> Iterator[str]:
    """``text`` without colours, or the messages in it where it is a record in JSON."""
    text = _COLOUR.sub("", text)
    record = _json_record(text)
    messages = [record[key] for key in _MESSAGE_KEYS if isinstance(record.get(key), str)]
    if not messages:
        yield text
        return
    process = record.get("processName")
    prefix = f"({process} pid=0) " if isinstance(process, str) else ""
    for message in messages:
        for line in re.split(r"[\r\n]", message):
            # A record may hold another one; each is shorter than the one around it.
            yield from _messages(prefix + line)


def _json_record(text: str) -> dict[str, Any]:
    beginning = text.find('{"')
    if beginning < 0:
        return {}
    try:
        record = json.loads(text[beginning:])
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _process(text: str) -> str:
    found = _PROCESS.search(text, 0, _PREFIX_LENGTH)
    return found[1] if found else ""


# What lines say. Each message is known by a few words, and read by the function beside them.


def _taken(start: _Start, text: str) -> _Start:
    """``start`` with what ``text`` says, or a new one that it begins."""
    config = server_config(text)
    if config is not None:
        return _started(start, config, _process(text))
    for marker, take in _TAKERS:
        if marker in text:
            take(start, text)
    return start


def _started(start: _Start, config: ServerConfig, engine: str) -> _Start:
    """An engine begins. Ranks under data parallelism do so together, the same one only anew."""
    if engine in start.engines or not start.engines or len(start.engines) >= MOST_RANKS:
        start = _Start(number=start.number + 1)
    start.engines.add(engine)
    start.config, start.says_something = config, True
    if start.lowered_because is None:
        start.mode = config.cudagraph_mode
    return start


_BAR = re.compile(
    r"Capturing ((?:[\w-]{1,40} ){0,4})CUDA graphs \(([\w, -]{1,60})\): {1,4}\d{1,3}%"
    r"\|[^|]{0,400}\| {0,4}(\d{1,7})/(\d{1,7}) \[",
    re.ASCII,
)


def _take_bars(start: _Start, text: str) -> None:
    for owner, detail, captured, total in _BAR.findall(text):
        routine, _, name = detail.rpartition(", ")
        mode = CUDAGraphMode.__members__.get(name)
        if mode is None:
            continue
        start.says_something = True
        start.graphs[_family(owner), mode] = int(captured), int(total)
        if not owner:
            start.runner = Runner.V1 if routine else Runner.V2


def _family(owner: str) -> str:
    """The family that a bar is about: all but the target's carry the name of the draft's pass or kind."""
    if not owner:
        return TARGET
    return {"prefill": DRAFT_PREFILL, "decode": DRAFT_DECODE}.get(owner.split()[-1], DRAFT)


_FINISHED = re.compile(
    r"Graph capturing finished in (\d{1,6}(?:\.\d{1,6})?) secs?(?:, took (-?\d{1,6}(?:\.\d{1,6})?) GiB)?",
    re.ASCII,
)


def _take_finished(start: _Start, text: str) -> None:
    found = _FINISHED.search(text)
    process = _process(text)
    if found and (process in start.ranks or len(start.ranks) < MOST_RANKS):
        gib = None if found[2] is None else float(found[2])
        start.ranks[process] = RankCapture(process=process, seconds=float(found[1]), gib=gib)
        start.says_something = True


def _take_cache_size(start: _Start, text: str) -> None:
    """What was captured before was the trial; other data-parallel engines have a cache of their own."""
    ours = _data_parallel_rank(_process(text))
    if ours in start.caches or len(start.caches) >= MOST_RANKS:
        return
    start.caches.add(ours)
    for process in [name for name in start.ranks if _data_parallel_rank(name) == ours]:
        del start.ranks[process]
    start.graphs.clear()


def _data_parallel_rank(process: str) -> str | None:
    found = _DATA_PARALLEL_RANK.search(process)
    return found[1] if found else None


_ANNOUNCED = re.compile(r"\b(PIECEWISE|FULL|ENCODER)=(\d{1,7})", re.ASCII)


def _take_announced(start: _Start, text: str) -> None:
    for name, number in _ANNOUNCED.findall(text):
        if name in CUDAGraphMode.__members__:
            start.announced[CUDAGraphMode[name]] = int(number)
            start.runner = Runner.V1
            start.says_something = True


_ENCODER_GRAPHS = re.compile(r"Captured (\d{1,7}) graphs", re.ASCII)


def _take_encoder(start: _Start, text: str) -> None:
    found = _ENCODER_GRAPHS.search(text)
    if found:
        start.graphs[ENCODER, CUDAGraphMode.FULL] = int(found[1]), int(found[1])


_NEW_MODE = re.compile(r"setting cudagraph_mode=([A-Z_]{1,40})|Overriding to ([A-Z_]{1,40})")
_SUPPORT = re.compile(r"support: ?AttentionCGSupport\.([A-Z_]{1,40})")
_MODE_MESSAGE = re.compile(r"CUDAGraphMode\.|Cudagraph mode ")


def _take_mode(start: _Start, text: str) -> None:
    """The mode that is in force once the loaded model and its attention are known."""
    found = _NEW_MODE.search(text)
    mode = CUDAGraphMode.__members__.get(found[1] or found[2]) if found else None
    if mode is None:
        return
    beginning = _MODE_MESSAGE.search(text)
    message = text[beginning.start() :] if beginning else text
    support = _SUPPORT.search(message)
    start.mode = mode
    start.lowered_because = message[:LONGEST_REASON].strip()
    start.support = AttentionSupport.__members__.get(support[1]) if support else None
    start.says_something = True


def _take_runner(start: _Start, _: str) -> None:
    start.runner = Runner.V2
    start.says_something = True


def _take_nothing_captured(start: _Start, _: str) -> None:
    start.captures_nothing = start.says_something = True


# The error itself, and not the engine's advice for a capture that might run out of memory.
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|\b(?:CUDA|HIP)(?: error:)? out of memory")


def _take_out_of_memory(start: _Start, text: str) -> None:
    if _OUT_OF_MEMORY.search(text):
        start.failure = OUT_OF_MEMORY
        start.is_dead = start.is_dead or not start.caches


def _take_failed(start: _Start, _: str) -> None:
    start.is_dead = True
    start.failure = start.failure or ENGINE_FAILED


_TAKERS: tuple[tuple[str, Callable[[_Start, str], None]], ...] = (
    ("CUDA graphs (", _take_bars),
    ("Graph capturing finished in", _take_finished),
    ("KV cache size: ", _take_cache_size),
    ("Profiling CUDA graph memory: ", _take_announced),
    ("Encoder CUDA graph capture complete", _take_encoder),
    ("setting cudagraph_mode=", _take_mode),
    ("requires piecewise capture", _take_mode),
    ("Using V2 Model Runner", _take_runner),
    ("CUDA graph capture. To ", _take_nothing_captured),
    ("out of memory", _take_out_of_memory),
    ("OutOfMemoryError", _take_out_of_memory),
    ("Engine core initialization failed", _take_failed),
    ("EngineCore failed to start", _take_failed),
)

_MARKERS = (BEGINNING.encode(), *(marker.encode() for marker, _ in _TAKERS))
