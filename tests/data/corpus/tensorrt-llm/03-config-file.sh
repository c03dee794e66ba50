trtllm-serve serve openai/gpt-oss-120b --config 03-config-file.settings.yaml --max_seq_len 16384 --max_beam_width 1
