"""Reference models in plain PyTorch, built from a Hugging Face config."""
