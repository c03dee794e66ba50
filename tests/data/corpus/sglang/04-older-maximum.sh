python3 -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --cuda-graph-max-bs 64 --disable-radix-cache
