sglang serve Qwen/Qwen3-8B --tp 2 --max-running-requests 100
