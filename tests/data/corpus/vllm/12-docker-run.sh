docker run --runtime nvidia --gpus all \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" \
    -p 8000:8000 --ipc=host \
    vllm/vllm-openai:v0.33.0 \
    --model google/gemma-3-27b-it --limit-mm-per-prompt '{"image": 2}' --max-num-seqs 128
