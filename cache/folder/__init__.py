"""A cache folder on a disk: its store, its files, and their upkeep."""
