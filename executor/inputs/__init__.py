"""Inputs of a step at fixed addresses: token buffers, block tables, paged KV caches, attention metadata."""
