cat > x.yaml <<'EOF'
use_cuda_graph: true
cuda_graph_padding_enabled: true
EOF
trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options x.yaml
