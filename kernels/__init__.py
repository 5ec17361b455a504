"""Drafting and verification kernels, each beside its plain reference."""
