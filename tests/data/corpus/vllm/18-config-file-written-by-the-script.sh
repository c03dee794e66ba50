cat > serve.yaml <<'EOF'
model: Qwen/Qwen3-8B
max-num-seqs: 48
speculative-config:
  method: ngram
  num_speculative_tokens: 4
  # it's the prompt's own words
EOF
vllm serve --config serve.yaml
