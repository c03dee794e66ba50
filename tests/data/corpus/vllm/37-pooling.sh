vllm serve acme/embedder-v2 --runner pooling --max-num-seqs 256
