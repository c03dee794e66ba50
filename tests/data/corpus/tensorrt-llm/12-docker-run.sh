docker run --rm -it --gpus all -p 8000:8000 nvcr.io/nvidia/tensorrt-llm/release:1.3.0 trtllm-serve "Qwen/Qwen3-8B" --enable_attention_dp --tp_size 2 --trust_remote_code
