"""One small file of every kind, as its makers write it."""

from __future__ import annotations

import json

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""

AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00+00:00,2399,6
"""

BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,1,3.2,ChatGPT,472,18,490,Conversation log
45.5,2,0.1,"GPT-4, turbo",1087,0,1087,API log
118,3,7.0,GPT-4,417,276,693,Conversation log
"""

VIDUR = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374.0,44.0
1.25,396,109
"""

MOONCAKE = """\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3052, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
"""

HISTOGRAM = """\
# source: a server of ours
num_tokens,count,num_reqs
8,100,8
16,5,4
700,3,
"""

METRICS = """\
**CUDAGraph Config Settings:**

- Mode: FULL_AND_PIECEWISE
- Capture sizes: [1, 2, 4, 8]

**CUDAGraph Stats:**

| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
|-----------------|---------------|--------------|--------------|-------|
| 6               | 8             | 2            | FULL         | 31    |
| 7               | 8             | 1            | PIECEWISE    | 2     |
| 415             | 415           | 0            | NONE         | 1     |
"""

USAGE = json.dumps(
    {
        "plan": "sha256:ab",
        "family": "target",
        "counts": [
            {"entry": {"mode": "FULL", "num_tokens": 2, "num_reqs": 2, "uniform_token_count": 1}, "count": 3},
            {"entry": {"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform_token_count": 1}, "count": 8},
            {"entry": {"mode": "PIECEWISE", "num_tokens": 2}, "count": 5},
        ],
        "eager": 2,
    },
    indent=1,
)

TRACES = {
    "Azure CSV": AZURE,
    "BurstGPT CSV": BURSTGPT,
    "vidur CSV": VIDUR,
    "Mooncake JSON lines": MOONCAKE,
}
HISTOGRAMS = {
    "histogram CSV": HISTOGRAM,
    "vLLM's CUDA graph metrics": METRICS,
    "usage counts of a cache": USAGE,
}
ALL = TRACES | HISTOGRAMS
