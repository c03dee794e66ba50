vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "dflash", "model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 15}' --attention-backend FLASH_ATTN --max-num-seqs 48
