python3 -m sglang.launch_server \
  --model Qwen/Qwen3-8B \
  --cuda-graph-bs-decode 1 2 4 8 16 \
  --cuda-graph-max-bs-prefill 2048 \
  --mem-fraction-static 0.85
