sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp-size 8 --attn-dp-size 4 --max-running-requests 256
