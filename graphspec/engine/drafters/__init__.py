"""Drafters of the reference engine, one file each."""
