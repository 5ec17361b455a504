"""Rules of the speculative section that need neither a checkpoint nor the method's class, one function each.

Each takes the section and yields what is wrong. They run on any object with the section's fields, so that the ones
whose fields are readable still run when others are not.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from graphspec.config.kernels import attention_backend_problems
from graphspec.config.schedule import table_problems
from graphspec.errors import Problem
from graphspec.fields import Rule
from graphspec.text import one_of, show

_TABLE = "num_speculative_tokens_per_batch_size"
_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
_FLY = ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k")


def _trap(section: Any) -> Iterator[Problem]:
    if section.tensor_parallel_size is not None:
        yield Problem(
            where="tensor_parallel_size",
            found=show(section.tensor_parallel_size),
            wanted="no value: the target's size is parallel.tensor_parallel_size",
            hint="for the draft write draft_tensor_parallel_size",
        )


def _table(section: Any) -> Iterator[Problem]:
    if section.num_speculative_tokens_per_batch_size is not None:
        found = table_problems(section.num_speculative_tokens_per_batch_size)
        yield from (p.under(_TABLE) for p in found)


def _backend(section: Any) -> Iterator[Problem]:
    yield from attention_backend_problems(section.attention_backend)


def _window(section: Any) -> Iterator[Problem]:
    low, high = section.prompt_lookup_min, section.prompt_lookup_max
    if low is not None and high is not None and low > high:
        yield Problem(
            where="prompt_lookup_min",
            found=show(low),
            wanted=f"at most prompt_lookup_max ({high})",
            hint="the shortest suffix cannot be longer than the longest",
        )


def _bound_to_synthetic(section: Any) -> Iterator[Problem]:
    yield from _bound(section, (_RATES, _LENGTH), "synthetic")


def _bound_to_fly(section: Any) -> Iterator[Problem]:
    yield from _bound(section, _FLY, "fly")


def _bound(section: Any, names: tuple[str, ...], wanted: str) -> Iterator[Problem]:
    method = section.rejection_sample_method.value
    for name in names:
        value = getattr(section, name)
        if value is not None and method != wanted:
            yield Problem(
                where=name,
                found=f"{show(value)} with rejection_sample_method {method}",
                wanted=f"rejection_sample_method {wanted}, the only one that reads it",
                hint=f"set rejection_sample_method to {wanted}, or drop {name}",
            )


def _one_of_two(section: Any) -> Iterator[Problem]:
    if section.rejection_sample_method.value != "synthetic":
        return
    given = [n for n in (_RATES, _LENGTH) if getattr(section, n) is not None]
    if len(given) != 1:
        yield Problem(
            where="rejection_sample_method",
            found=f"synthetic with {' and '.join(given) or 'neither rates nor a length'}",
            wanted=f"exactly {one_of((_RATES, _LENGTH))}",
            hint="rates say how often each draft is kept; a length is the mean number of tokens a step",
        )


def _rates(section: Any) -> Iterator[Problem]:
    rates = section.synthetic_acceptance_rates
    if rates is None:
        return
    for i, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            yield Problem(
                where=f"{_RATES}[{i}]", found=show(rate), wanted="a probability from 0 to 1"
            )
    for i, (before, after) in enumerate(itertools.pairwise(rates)):
        if after > before:
            yield Problem(
                where=f"{_RATES}[{i + 1}]",
                found=f"{after} after {before}",
                wanted="at most the rate before it: a draft is kept only if all before it are",
            )


def _rates_count(section: Any) -> Iterator[Problem]:
    rates, k = section.synthetic_acceptance_rates, section.num_speculative_tokens
    if rates is not None and k is not None:
        yield from rates_count_problems(len(rates), k)


def rates_count_problems(count: int, k: int) -> Iterator[Problem]:
    """There must be one rate for each of k drafts."""
    if count != k:
        yield Problem(
            where=_RATES,
            found=f"{count} rates",
            wanted=f"one for each of num_speculative_tokens ({k})",
        )


def _length(section: Any) -> Iterator[Problem]:
    length, k = section.synthetic_acceptance_length, section.num_speculative_tokens
    if length is not None and k is not None:
        yield from length_problems(length, k)


def length_problems(length: float, k: int) -> Iterator[Problem]:
    """A mean of tokens a step lies between none and all of k drafts kept, with the one from the target."""
    if not 1 <= length <= k + 1:
        yield Problem(
            where=_LENGTH,
            found=show(length),
            wanted=f"from 1 to {k + 1}: a step gives one token, and at most {k} drafts more",
        )


def _fly_window(section: Any) -> Iterator[Problem]:
    k = section.num_speculative_tokens
    if section.rejection_sample_method.value == "fly" and k is not None:
        yield from fly_problems(k, section.fly_window_size)


def fly_problems(k: int, window: int | None) -> Iterator[Problem]:
    """fly needs a draft after the deferred one, and a window that fits behind it."""
    if k < 2:
        yield Problem(
            where="num_speculative_tokens",
            found=show(k),
            wanted="at least 2 with rejection_sample_method fly, which looks at the drafts after a rejected one",
        )
    elif window is not None and window >= k:
        yield Problem(
            where="fly_window_size",
            found=show(window),
            wanted=f"less than num_speculative_tokens ({k}): a window longer than that never closes",
        )


RULES: tuple[Rule, ...] = (
    _trap,
    _table,
    _backend,
    _window,
    _bound_to_synthetic,
    _bound_to_fly,
    _one_of_two,
    _rates,
    _rates_count,
    _length,
    _fly_window,
)
"""All rules, in the order in which their problems are listed."""
