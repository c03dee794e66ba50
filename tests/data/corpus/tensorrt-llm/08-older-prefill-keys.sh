trtllm-serve Qwen/Qwen3-8B --config 08-older-prefill-keys.settings.yaml --pp_size 2
