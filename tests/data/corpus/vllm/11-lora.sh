vllm serve meta-llama/Llama-3.1-8B --enable-lora --lora-modules sql=/adapters/sql chat=/adapters/chat --max-loras 4 --max-lora-rank 32
