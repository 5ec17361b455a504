"""A matrix of configs: each file with each combination of the values that its axes name."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from graphspec.api import read_settings, resolve_document
from graphspec.errors import GraphspecError, Problem, SpecError
from graphspec.formats.assign import assign
from graphspec.formats.document import Document
from graphspec.resolve.spec import EngineSpec
from graphspec.text import plural

ALIASES: Mapping[str, str] = {
    "tp": "parallel.tensor_parallel_size",
    "pp": "parallel.pipeline_parallel_size",
    "dp": "parallel.data_parallel_size",
    "pcp": "parallel.prefill_context_parallel_size",
    "dcp": "parallel.decode_context_parallel_size",
    "k": "speculative.num_speculative_tokens",
    "dtype": "model.dtype",
    "isa": "device.isa",
}
"""Short names of fields that matrices are often made of."""

MAX_VARIANTS = 10_000


@attrs.frozen(kw_only=True)
class Axis:
    """One field, and the values that it takes in turn, as ``--set`` would be given them."""

    name: str
    path: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """The axis that ``NAME=v1,v2`` writes. NAME is an alias or a dotted path. A comma inside of brackets is part of a
        value. Raises `SpecError`.

        >>> Axis.parse("tp=1,2")
        Axis(name='tp', path='parallel.tensor_parallel_size', values=('1', '2'))
        """
        name, equals, written = (part.strip() for part in text.partition("="))
        values = tuple(_split(written))
        if not equals or not name or not all(values):
            raise SpecError(
                Problem(
                    where=f"--matrix {text}",
                    found="no list of values" if name else "no name",
                    wanted="NAME=v1,v2, such as tp=1,2,4 or scheduler.max_num_seqs=8,16",
                )
            )
        return cls(name=name, path=ALIASES.get(name, name), values=tuple(dict.fromkeys(values)))


def _split(text: str) -> Iterator[str]:
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()


@attrs.frozen(kw_only=True)
class Variant:
    """One config of the matrix. `label` tells it from the others: the file, and the value on each axis."""

    label: str
    spec: EngineSpec


def expand(
    configs: Sequence[str], axes: Sequence[Axis] = (), settings: Sequence[str] = ()
) -> Sequence[Variant]:
    """Every variant, file by file, the last axis fastest. `settings` are applied to all, before the axes.

    Raises `SpecError` with the problems of all variants, each with the variant in front, and `EnvironmentProblem` where
    only this machine is at fault.
    """
    _check(configs, axes)
    combinations = list(itertools.product(*([(a, v) for v in a.values] for a in axes)))
    variants: list[Variant] = []
    errors: list[GraphspecError] = []
    for config in configs:
        # Once a file: standard input can be read no second time.
        document = read_settings(config, settings)
        for combination in combinations:
            label = " ".join([config, *(f"{axis.name}={value}" for axis, value in combination)])
            try:
                variants.append(Variant(label=label, spec=_resolved(document, combination)))
            except GraphspecError as error:
                errors.append(
                    type(error)(
                        attrs.evolve(p, where=f"{label}: {p.where}") for p in error.problems
                    )
                )
    if errors:
        # A config that is wrong on any machine comes before what this one lacks.
        worst = min(errors, key=lambda error: error.exit_code)
        raise type(worst)(problem for error in errors for problem in error.problems)
    return variants


def _resolved(document: Document, combination: Sequence[tuple[Axis, str]]) -> EngineSpec:
    for axis, value in combination:
        document = assign(document, f"{axis.path}={value}")
    return resolve_document(document).require()


def _check(configs: Sequence[str], axes: Sequence[Axis]) -> None:
    problems = [
        Problem(
            where=f"--{option} {name}",
            found=f"{plural(count, 'time')} the same",
            wanted="each once",
        )
        for option, names in (("config", configs), ("matrix", [axis.path for axis in axes]))
        for name in dict.fromkeys(names)
        if (count := names.count(name)) > 1
    ]
    size = len(configs)
    for axis in axes:
        size *= len(axis.values)
    if size > MAX_VARIANTS:
        problems.append(
            Problem(where="--matrix", found=f"{size} variants", wanted=f"at most {MAX_VARIANTS}")
        )
    if problems:
        raise SpecError(problems)
