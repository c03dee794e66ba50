sglang serve Qwen/Qwen3-8B --speculative-algorithm DFLASH --speculative-draft-model z-lab/Qwen3-8B-DFlash-b16 --speculative-dflash-block-size 16 --attention-backend fa3
