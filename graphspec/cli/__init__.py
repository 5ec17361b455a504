"""The command line: one module per command, imported when the command is called."""

import importlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

import click

COMMANDS: Mapping[str, tuple[str, str]] = {
    "warmup": (
        "graphspec.cli.warmup:warmup",
        "Compile every unit and capture every graph ahead of time.",
    ),
    "generate": (
        "graphspec.cli.generate:generate",
        "Greedy text from the warmed reference engine.",
    ),
    "plan": (
        "graphspec.cli.plan:plan",
        "Which graphs the schedule can reach, what they pad, and what runs without one.",
    ),
    "lint": (
        "graphspec.cli.lint:lint",
        "Every operation of the program that no captured graph can repeat.",
    ),
    "check": ("graphspec.cli.check:check", "Everything that is wrong with a config, at once."),
    "show": (
        "graphspec.cli.show:show",
        "A config as read or resolved, with origins and decisions.",
    ),
    "convert": (
        "graphspec.cli.convert:convert",
        "Configs of other engines to ours, and back.",
    ),
    "schema": ("graphspec.cli.schema:schema", "The JSON Schema of config files."),
    "methods": ("graphspec.cli.methods:methods", "Compare the drafting methods."),
    "hash": ("graphspec.cli.hash:hash_command", "The hashes of a config, and what is in them."),
    "diff": (
        "graphspec.cli.diff:diff",
        "What differs between two configs, and which keys it moves.",
    ),
    "explain": (
        "graphspec.cli.explain:explain",
        "Which units would miss the cache, and why.",
    ),
    "keys": (
        "graphspec.cli.keys:keys",
        "What keys are made of, and golden keys that show when one changes.",
    ),
    "audit": (
        "graphspec.cli.audit:audit",
        "Change each field alone, trace every unit, and compare keys with graphs.",
    ),
    "cache": (
        "graphspec.cli.cache:cache",
        "Look into the cache folder, check it, and keep it small.",
    ),
    "kernels": (
        "graphspec.cli.kernels:kernels",
        "Which kernel a device gets and why; compile them for GPUs elsewhere.",
    ),
    "devices": (
        "graphspec.cli.devices:devices",
        "GPUs that a cache can be built for on a machine without one.",
    ),
    "doctor": ("graphspec.cli.doctor:doctor", "Check what this machine has and lacks."),
}
"""Command -> where it is, and its one line of help, so that help imports no command."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called. `lazy`: command -> where it is, and its one line of help."""

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, name = self._lazy[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            from graphspec.text import did_you_mean

            ctx.fail(f"no command {args[0]!r}; {did_you_mean(args[0], self._lazy)}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from graphspec import __version__

        click.echo(f"graphspec {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    callback=_version,
    expose_value=False,
    is_eager=True,
    help="Show the version.",
)
def _root() -> None:
    """From one config of an LLM engine: a checked contract, a key, compiled code, captured graphs.

    Exit codes: 0 fine, 1 findings, 2 usage or invalid config, 3 environment, 4 cache unusable in strict mode.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line; errors of ours become text and an exit code."""
    from graphspec.cli.common import run

    # Commands print findings. Without a handler Python would print the events behind them as well, one for each unit.
    logger, silent = logging.getLogger("graphspec"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        sys.exit(run(_root, sys.argv[1:] if arguments is None else arguments))
    finally:
        logger.removeHandler(silent)
