"""Keys: canonical encoding, factor trees, hashes, scopes that watch what a trace reads."""
