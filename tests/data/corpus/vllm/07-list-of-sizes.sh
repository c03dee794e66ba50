vllm serve openai/gpt-oss-120b --cudagraph-capture-sizes 1 2 4 8 16 32 64 --max-num-seqs 64 --tool-call-parser openai --enable-auto-tool-choice
