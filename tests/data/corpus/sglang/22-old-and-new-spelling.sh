python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --piecewise-cuda-graph-tokens 64 128 --cuda-graph-bs-prefill 64
