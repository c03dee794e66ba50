"""Graphs as data: saved by one process, rebuilt by another without running the model."""
