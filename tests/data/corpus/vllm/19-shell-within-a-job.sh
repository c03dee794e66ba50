srun --ntasks=1 --gres=gpu:1 bash -lc 'export VLLM_USE_BREAKABLE_CUDAGRAPH=1; vllm serve Qwen/Qwen3-8B --max-num-seqs 16'
