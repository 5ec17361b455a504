"""The reference engine: programs, KV blocks, executor, drafters."""
