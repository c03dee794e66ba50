vllm serve deepseek-ai/DeepSeek-V3 \
  -dp 8 -tp 1 \
  --enable-expert-parallel --all2all-backend deepep_low_latency \
  --enable-dbo --dbo-decode-token-threshold 64 \
  --speculative-config.method mtp --speculative-config.num_speculative_tokens 1 \
  --trust-remote-code
