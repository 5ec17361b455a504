"""Capture planning, capture, dispatch and replay."""
