"""What runs in vLLM's own environment for ``tools/check_against_vllm.py``."""
