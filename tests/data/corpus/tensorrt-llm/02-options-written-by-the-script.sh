cat > extra.yml << EOF
cuda_graph_config:
  enable_padding: true
  max_batch_size: 384
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  dtype: fp8
EOF

trtllm-serve deepseek-ai/DeepSeek-R1 \
    --backend pytorch --tp_size 8 --ep_size 8 --max_batch_size 384 \
    --extra_llm_api_options extra.yml
