python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --enable-lora --lora-paths a=x/a b=x/b --max-loras-per-batch 4 --lora-backend triton
