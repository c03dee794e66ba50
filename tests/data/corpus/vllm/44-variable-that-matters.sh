vllm serve Qwen/Qwen3-8B --max-num-seqs "${SEQS:-64}"
