"""Drafting methods: one module per family, each a class of declared capabilities, and their registry."""
