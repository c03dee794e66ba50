[Unit]
Description=Model server
After=network-online.target

[Service]
Environment=HF_HOME=/var/lib/hf
ExecStart=/opt/vllm/bin/vllm serve Qwen/Qwen3-0.6B --max-num-seqs 32 --host 127.0.0.1
Restart=always
