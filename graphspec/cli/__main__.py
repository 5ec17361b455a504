"""``python -m graphspec.cli``."""

from graphspec.cli import main

main()
