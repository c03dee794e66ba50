sglang serve openai/gpt-oss-120b --cuda-graph-config '{"decode": {"max_bs": 20}, "prefill": {"backend": "full", "bs": [512, 100], "max_bs": null}}' --tp-size 4
