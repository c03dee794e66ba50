vllm serve Qwen/Qwen3-0.6B -O3 --performance-mode interactivity
