vllm serve Qwen/Qwen3-8B --compilation-config '{"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32]}' --max-num-seqs 32
