python3 -m sglang.launch_server --config 19-config-file.settings.yaml --cuda-graph-max-bs-decode 32
