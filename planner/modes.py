"""The modes and capability levels that planning speaks of.

Source of the rules: vLLM 0.33, ``CUDAGraphMode`` and ``CompilationMode`` in its compilation
config, ``AttentionCGSupport`` in its attention backends.
"""

from __future__ import annotations

import enum


class CUDAGraphMode(enum.Enum):
    """When a batch is replayed from a graph, and from which kind.

    Three members are runtime modes, which one step runs in (``NONE``, ``PIECEWISE``, ``FULL``).
    The other two name a pair of them: one for uniform decode batches, one for mixed batches.
    """

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        return self is not CUDAGraphMode.NONE

    def separate_routine(self) -> bool:
        """Whether decode and mixed batches have graphs of their own."""
        return isinstance(self.value, tuple)

    def decode_mode(self) -> CUDAGraphMode:
        """The runtime mode of uniform decode batches."""
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self

    def mixed_mode(self) -> CUDAGraphMode:
        """The runtime mode of batches that mix prefill and decode."""
        return CUDAGraphMode(self.value[1]) if isinstance(self.value, tuple) else self

    def has_mode(self, mode: CUDAGraphMode) -> bool:
        """Whether some batch may run in the runtime mode ``mode``.

        Raises:
            ValueError: ``mode`` names a pair and so is no runtime mode.
        """
        if mode.separate_routine():
            raise ValueError(f"{mode} is a pair of runtime modes, not one of them")
        return mode in (self.decode_mode(), self.mixed_mode())

    def has_full_cudagraphs(self) -> bool:
        """Whether whole forwards are recorded for some batches."""
        return self.has_mode(CUDAGraphMode.FULL)

    def has_piecewise_cudagraphs(self) -> bool:
        """Whether forwards are recorded in pieces for some batches."""
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    requires_piecewise_compilation = has_piecewise_cudagraphs

    def without_piecewise(self) -> CUDAGraphMode:
        """What is left of this mode where no forward can be cut into pieces."""
        if self is CUDAGraphMode.PIECEWISE:
            return CUDAGraphMode.NONE
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return self

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The strongest runtime mode of the two routines."""
        return max(self.decode_mode(), self.mixed_mode(), key=lambda mode: mode.strength)

    def is_valid_runtime_mode(self) -> bool:
        """Whether a single step can run in this mode."""
        return self in self.valid_runtime_modes()

    @classmethod
    def valid_runtime_modes(cls) -> frozenset[CUDAGraphMode]:
        """The modes that a forward context may carry."""
        return frozenset({cls.NONE, cls.PIECEWISE, cls.FULL})

    @property
    def strength(self) -> int:
        """The integer that data-parallel ranks exchange: a smaller one is weaker.

        Raises:
            ValueError: this mode is a pair and no rank ever runs in it.
        """
        if isinstance(self.value, tuple):
            raise ValueError(f"{self} is a pair of runtime modes and has no strength of its own")
        return int(self.value)


class CompilationMode(enum.Enum):
    """How the engine compiles the model."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3

    def __str__(self) -> str:
        return self.name


class AttentionSupport(enum.Enum):
    """Which batches an attention backend can replay from one recorded graph.

    ``ALWAYS``: any; ``UNIFORM_BATCH``: those whose requests have the same query length;
    ``UNIFORM_SINGLE_TOKEN_DECODE``: those with one token a request; ``NEVER``: none.
    """

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: AttentionSupport) -> bool:
        return bool(self.value < other.value)


class Runner(enum.Enum):
    """By whose rules batches find their graph: vLLM's older runner ``v1`` or ``v2``, or another engine."""

    V1 = "v1"
    V2 = "v2"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"

    def __str__(self) -> str:
        return self.value


class Usage(enum.Enum):
    """How the engine is started; some of its defaults differ."""

    API_SERVER = "api_server"
    OFFLINE = "offline"

    def __str__(self) -> str:
        return self.value


class PerformanceMode(enum.Enum):
    """vLLM's ``--performance-mode``."""

    BALANCED = "balanced"
    INTERACTIVITY = "interactivity"
    THROUGHPUT = "throughput"

    def __str__(self) -> str:
        return self.value


class CapturePolicy(enum.Enum):
    """Who chooses the capture sizes.

    ``engine``: the engine's own rules; ``covering``: sizes without a hole or a dead entry;
    ``traffic``: those that cost a known traffic the least.
    """

    ENGINE = "engine"
    COVERING = "covering"
    TRAFFIC = "traffic"

    def __str__(self) -> str:
        return self.value
