#!/usr/bin/env bash
# Serves the chat model on both GPUs.
set -euo pipefail
export VLLM_USE_V2_MODEL_RUNNER=1
export HF_HOME=/data/hf

vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --tensor-parallel-size 2 \
  --gpu-memory-utilization 0.92 \
  --max-model-len 32768 \
  --max_num_batched_tokens=16384
