"""The sections of an engine's config, one module each, and the two wholes: `EngineConfig` and `EngineSpec`."""
