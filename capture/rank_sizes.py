"""Which ranks a file is about: what was planned or measured for some numbers of ranks is refused for others."""

from collections.abc import Mapping, Sequence

from graphspec.config.parallel import ParallelConfig
from graphspec.errors import Problem
from graphspec.fields import policies
from graphspec.formats.document import Document
from graphspec.text import show

PARALLEL = "parallel"
"""Where files have the sizes."""


def rank_sizes(parallel: ParallelConfig) -> Mapping[str, int]:
    """The sizes of the parallel groups, by field."""
    return {
        name: getattr(parallel, name)
        for name in policies(ParallelConfig)
        if name.endswith("_parallel_size")
    }


def made_for_others(document: Document, parallel: ParallelConfig) -> Sequence[Problem]:
    """One problem for each size that a file names and that is not as in `parallel`. A file that names none holds for any
    number of ranks."""
    named = document.data.get(PARALLEL, {})
    ours = rank_sizes(parallel)
    if not isinstance(named, Mapping):
        wanted = f"sizes by name, as in {show(dict(ours))}"
        return [Problem(where=f"{document.source}: {PARALLEL}", found=show(named), wanted=wanted)]
    return [
        Problem(
            where=f"{document.source}:{document.lines[PARALLEL, name]}: {PARALLEL}.{name}",
            found=show(size),
            wanted=f"{ours[name]}, as in this config"
            if name in ours
            else f"one of {', '.join(ours)}",
            hint=f"make the file anew with this config; what holds for any number of ranks has no {PARALLEL} in it",
        )
        for name, size in named.items()
        if size != ours.get(name) or isinstance(size, bool)
    ]
