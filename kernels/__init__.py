"""Drafting and verification kernels, one file each."""
