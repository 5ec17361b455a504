"""``graphspec cache``: look into the cache folder, check it, and keep it small."""

from collections.abc import Mapping

import click

from graphspec.cli import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "ls": ("graphspec.cli.cache_list:ls", "List every entry."),
    "stats": ("graphspec.cli.cache_list:stats", "What the folder holds, in numbers."),
    "show": ("graphspec.cli.cache_show:show", "All that one entry says of itself."),
    "verify": (
        "graphspec.cli.cache_verify:verify",
        "Read every entry whole, or compile units anew and compare.",
    ),
    "gc": ("graphspec.cli.cache_clean:gc", "Remove what nobody needs, down to the caps."),
    "prune": ("graphspec.cli.cache_clean:prune", "Remove entries of your choice."),
    "export": ("graphspec.cli.cache_bundle:export", "Write entries into one file that travels."),
    "import": ("graphspec.cli.cache_bundle:import_command", "Read such a file."),
    "keygen": ("graphspec.cli.cache_bundle:keygen", "Make a key to sign entries with."),
}
"""Command -> where it is, and its one line of help, so that help imports no command."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def cache() -> None:
    """Look into the cache folder, check it, and keep it small."""
