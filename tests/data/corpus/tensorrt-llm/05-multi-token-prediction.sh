tee mtp.yaml > /dev/null <<'EOF'
speculative_config:
    decoding_type: MTP
    num_nextn_predict_layers: 3
    use_relaxed_acceptance_for_thinking: true
cuda_graph_config:
    enable_padding: true
EOF
mpirun -n 8 trtllm-llmapi-launch trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --config mtp.yaml
