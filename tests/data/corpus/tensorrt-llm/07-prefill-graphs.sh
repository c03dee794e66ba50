trtllm-serve Qwen/Qwen3-8B --config 07-prefill-graphs.settings.yaml
