python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-piecewise-cuda-graph --piecewise-cuda-graph-max-tokens 4096
