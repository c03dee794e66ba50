MODEL=Qwen/Qwen3-8B
TP=2
PORT="${PORT:-8000}"
EXTRA="--max-num-seqs 24 --disable-log-stats"

vllm serve "$MODEL" --tensor-parallel-size "$TP" --port "$PORT" $EXTRA
