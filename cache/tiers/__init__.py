"""Stores around stores, and stores that are not on this disk."""
