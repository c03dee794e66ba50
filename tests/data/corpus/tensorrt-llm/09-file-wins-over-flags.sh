trtllm-serve Qwen/Qwen3-8B --max_batch_size 256 --tensor_parallel_size 4 --config 09-file-wins-over-flags.settings.yaml
