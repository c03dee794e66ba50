vllm serve Qwen/Qwen3-8B --cudagraph-capture-sizes 1,2,4,8
