"""Where the cache lies: ``--cache-dir``, else ``GRAPHSPEC_CACHE_DIR``, else the user's cache folder."""

import os

VARIABLE = "GRAPHSPEC_CACHE_DIR"


def cache_folder(asked: str | None = None) -> str:
    """The cache folder of this process, made absolute. Nothing is created."""
    chosen = asked or os.environ.get(VARIABLE)
    if chosen:
        return os.path.abspath(chosen)
    import platformdirs

    return platformdirs.user_cache_dir("graphspec", appauthor=False)
