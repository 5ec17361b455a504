"""What all commands share: options, JSON output, and errors as text or JSON with an exit code."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import click

from graphspec.errors import EnvironmentProblem, GraphspecError, Problem

F = TypeVar("F", bound=Callable[..., Any])

FINE, FINDINGS = 0, 1


def config_option(function: F) -> F:
    """``--config FILE``, with ``-`` for standard input."""
    return click.option(
        "--config",
        "config",
        required=True,
        metavar="FILE",
        help="Config file; - for standard input.",
    )(function)


def set_option(function: F) -> F:
    """``--set path=value``, as often as needed."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="PATH=VALUE",
        help="Change one field, as in --set speculative.num_speculative_tokens=3. Can be repeated.",
    )(function)


def cache_dir_option(function: F) -> F:
    """``--cache-dir D``."""
    return click.option(
        "--cache-dir",
        metavar="DIR",
        help="Cache folder. Default: GRAPHSPEC_CACHE_DIR, else the user's cache folder.",
    )(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(data, indent=2))


def write_file(option: str, path: str, text: str) -> None:
    """Writes what `option` asked for. Raises `EnvironmentProblem` where the file cannot be written.

    Called with no text before the work, it fails before the work.
    """
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentProblem(
            Problem(
                where=f"{option} {path}",
                found=error.strerror or str(error),
                wanted="a file that can be written",
            )
        ) from None


def run(command: click.Command, arguments: list[str]) -> int:
    """Runs a command and returns its exit code. Errors of ours and of usage are printed, never raised."""
    try:
        result = command.main(args=arguments, prog_name="graphspec", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        if "--json" in arguments:
            print_json(
                {
                    "error": "UsageError",
                    "exit_code": error.exit_code,
                    "problems": [
                        {
                            "where": "command line",
                            "found": error.format_message(),
                            "wanted": "a valid call",
                            "hint": "see graphspec --help",
                        }
                    ],
                }
            )
        else:
            error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130
    except GraphspecError as error:
        report(error, as_json="--json" in arguments)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (graphspec ... | head). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else FINE


def visible(text: str) -> str:
    """The text with what a terminal would hide, or obey, as escapes: keys and values may hold any character."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def report(error: GraphspecError, *, as_json: bool) -> None:
    """An error as text on standard error, or as one JSON object on standard output."""
    if not as_json:
        shown = [
            attrs.evolve(
                p, where=visible(p.where), found="\n".join(map(visible, p.found.split("\n")))
            )
            for p in error.problems
        ]
        click.echo(f"error: {type(error)(shown)}", err=True)
        return
    print_json(
        {
            "error": type(error).__name__,
            "exit_code": error.exit_code,
            "problems": [
                {"where": p.where, "found": p.found, "wanted": p.wanted, "hint": p.hint}
                for p in error.problems
            ],
        }
    )
