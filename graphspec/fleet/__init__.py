"""Warmup of many configs on many machines: what is missing, who compiles it, and what became of it."""
