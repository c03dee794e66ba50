python3 -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --cuda-graph-bs 1 2 4 8 --disable-cuda-graph-padding
