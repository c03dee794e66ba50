python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --cuda_graph_max_bs_decode 8
