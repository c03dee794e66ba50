trtllm-serve Qwen/Qwen3-8B --max-batch-size 8
