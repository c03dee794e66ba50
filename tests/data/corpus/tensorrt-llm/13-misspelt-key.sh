cat > x.yaml <<'EOF'
cuda_graph_config:
  enable_pading: true
EOF
trtllm-serve Qwen/Qwen3-8B --config x.yaml
