"""Backends that capture and replay one call: CUDA graphs, and the tape for machines without a GPU."""
