"""The cache of compiled units: keys, entries, stores, the compiler, and the artifacts that come back."""
