vllm serve --config 17-config-file.settings.yaml --max-num-seqs 96
