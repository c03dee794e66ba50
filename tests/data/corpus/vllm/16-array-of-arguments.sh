#!/bin/bash
ARGS=(
  --max-num-seqs 32          # requests of a step
  --max-num-batched-tokens 8192
)
ARGS+=(--kv-cache-dtype fp8)
exec vllm serve openai/gpt-oss-120b "${ARGS[@]}"
