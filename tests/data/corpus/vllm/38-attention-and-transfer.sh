vllm serve deepseek-ai/DeepSeek-V3-0324 -tp 8 --attention-config '{"backend": "FLASHMLA"}' --block-size 64 --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_producer"}'
