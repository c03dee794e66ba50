python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disable-decode-cuda-graph --cuda-graph-backend-prefill full --disable-cuda-graph
