"""What the commands on the cache share: sizes and times as people write and read them."""

import datetime
import re
from collections.abc import Mapping

import click

_SIZES: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_TIMES: Mapping[str, float] = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)")


def size(text: str) -> int:
    """Bytes of a size as an option has it: a number, or one with kB, MB, GB, TB, or KiB, MiB, GiB, TiB.

    >>> size("5000"), size("1.5MB"), size("2GiB")
    (5000, 1500000, 2147483648)
    """
    return int(_quantity(text, _SIZES, "a number of bytes, as 5000000000, 5GB or 4.5GiB"))


def duration(text: str) -> float:
    """Seconds of a time as an option has it: a number, or one with s, m, h or d.

    >>> duration("90"), duration("1.5h"), duration("7d")
    (90.0, 5400.0, 604800.0)
    """
    return _quantity(text, _TIMES, "a time, as 3600, 90m, 12h or 7d")


def _quantity(text: str, units: Mapping[str, float], wanted: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    factor = units.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise click.BadParameter(f"{text!r} is not {wanted}")
    return float(found[1]) * factor


def in_bytes(count: int) -> str:
    """A size as people read it.

    >>> in_bytes(999), in_bytes(1_536_000), in_bytes(20 << 30)
    ('999 B', '1.5 MB', '21.5 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def when(seconds: float | None) -> str:
    """A time since the epoch as date and minute, in UTC.

    >>> when(0.0), when(None)
    ('1970-01-01 00:00 UTC', 'never')
    """
    if seconds is None:
        return "never"
    try:
        at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return "unknown"
    return at.strftime("%Y-%m-%d %H:%M UTC")


def entries(count: int) -> str:
    """``1 entry``, ``2 entries``."""
    return "1 entry" if count == 1 else f"{count:,} entries"
