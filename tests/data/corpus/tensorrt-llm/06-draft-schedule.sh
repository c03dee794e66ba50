trtllm-serve meta-llama/Llama-3.1-8B-Instruct --config 06-draft-schedule.settings.yaml --max_batch_size 32
