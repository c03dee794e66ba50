vllm serve Qwen/Qwen3-8B \
  -cc.cudagraph_mode=FULL_DECODE_ONLY \
  -cc.max_cudagraph_capture_size=256 \
  -cc.pass_config.fuse_attn_quant true
