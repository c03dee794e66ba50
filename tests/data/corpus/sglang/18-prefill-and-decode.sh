#!/bin/bash
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill --port 30001 &
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode decode --port 30002 --max-running-requests 128 &
wait
