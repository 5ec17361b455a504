"""``python -m graphspec``."""

from graphspec.cli import main

main()
