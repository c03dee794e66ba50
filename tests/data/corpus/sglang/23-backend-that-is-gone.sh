sglang serve Qwen/Qwen3-8B --cuda-graph-backend-prefill tc_piecewise
