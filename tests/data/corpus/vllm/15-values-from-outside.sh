#!/bin/sh
vllm serve ${MODEL} --tensor-parallel-size $(nvidia-smi -L | wc -l) --max-num-seqs $((BATCH * 2)) --served-model-name "$NAME"
