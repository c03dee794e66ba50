cd /srv/models && nohup numactl --cpunodebind=0 --membind=0 vllm serve Qwen/Qwen3-30B-A3B --max-num-seqs 256 --async-scheduling > server.log 2>&1 &
echo "started $!"
