trtllm-serve Qwen/Qwen3-8B --max_batch_size 64 --max_num_tokens 4096 --host 0.0.0.0
