vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 \
    -sc '{"method":"eagle3","model":"acme/EAGLE3-Llama-70B","num_speculative_tokens":3,"draft_tensor_parallel_size":1}' \
    --seed 42
