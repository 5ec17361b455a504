"""Fixtures of the fault tests: small file systems that are really mounted."""

from support.mounts import mounted

__all__ = ["mounted"]
