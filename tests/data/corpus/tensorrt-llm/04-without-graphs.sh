cat <<'YAML' > no-graphs.yaml
cuda_graph_config: null
YAML
trtllm-serve "Qwen/Qwen3-0.6B" --config=no-graphs.yaml
