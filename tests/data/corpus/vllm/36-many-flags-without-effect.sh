vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port 9000 --api-key "$API_KEY" --served-model-name q --chat-template ./t.jinja \
  --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --no-enable-log-requests \
  --allowed-origins '["*"]' --gpu-memory-utilization=.9 --seed 0 --enable-prefix-caching
