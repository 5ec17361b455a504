"""Where the cache lies: ``--cache-dir``, else ``GRAPHSPEC_CACHE_DIR``, else the user's cache folder, else a temporary one."""

import os
import tempfile

import attrs

VARIABLE = "GRAPHSPEC_CACHE_DIR"


@attrs.frozen(kw_only=True)
class Location:
    """The cache folder, absolute. `note` says why it is not the user's own, in a sentence."""

    folder: str
    note: str = ""


def cache_folder(asked: str | None = None) -> str:
    """The cache folder of this process, made absolute. Nothing is created."""
    return locate(asked).folder


def locate(asked: str | None = None) -> Location:
    """The cache folder, and why it is a temporary one where nobody chose and the user has no folder of their own.

    Containers run under user ids that have no home and no name. What was chosen is never replaced. Nothing is created.
    """
    chosen = asked or os.environ.get(VARIABLE)
    if chosen:
        return Location(folder=os.path.abspath(chosen))
    own = _users_own()
    if not own:
        return _temporary("this user has no home folder")
    if not _can_be_made(own):
        return _temporary(f"{own} cannot be made or written to")
    return Location(folder=os.path.abspath(own))


def _users_own() -> str:
    import platformdirs

    try:
        own = platformdirs.user_cache_dir("graphspec", appauthor=False)
    except RuntimeError:
        # Newer platformdirs raise where nobody knows the home; older ones leave the tilde in.
        return ""
    return own if os.path.isabs(own) else ""


def _temporary(why: str) -> Location:
    folder = os.path.join(tempfile.gettempdir(), f"graphspec-{os.getuid()}")
    return Location(
        folder=folder,
        note=f"the cache is in {folder}, which may be lost at a restart: {why}; choose a folder with {VARIABLE}",
    )


def _can_be_made(path: str) -> bool:
    """Whether this process can write to the folder, or make it in the nearest folder above that is there."""
    here = os.path.abspath(path)
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    return os.path.isdir(here) and os.access(here, os.W_OK | os.X_OK)
