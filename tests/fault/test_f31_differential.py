"""F31: what inductor generates for pairs of specs is compared with their keys. Different source means different keys.

The other way round costs a compile and nothing else: keys that differ over the same source are counted as needless misses.
"""

import contextlib
import itertools
import random

import attrs
import pytest

from graphspec.config.device import Target
from graphspec.errors import SpecError
from graphspec.testing import perturb
from support.sources import Sources
from support.specs import plain_spec
from support.speculative import resolved_case

READ = ("speculative.num_speculative_tokens", "model.rms_norm_eps", "parallel.tensor_parallel_size")
"""Fields that are in the code of a unit; the last one is only in a scope that is wider than needed."""
SEEN = ("model.", "scheduler.", "parallel.", "device.", "kernels.", "speculative.num")
"""Sections that units see, or could forget."""


@pytest.fixture(scope="module")
def sources():
    with Sources() as process:
        yield process


@attrs.define
class Tally:
    """What the comparison of units with a twin of the same name came to."""

    compared: int = 0
    sources_differ: int = 0
    keys_differ: int = 0
    needless: int = 0
    unsound: list[str] = attrs.Factory(list)

    def add(self, one, other, what):
        for name in sorted(one.keys() & other.keys()):
            key_differs, source_differs = (
                a != b for a, b in zip(one[name], other[name], strict=True)
            )
            self.compared += 1
            self.sources_differ += source_differs
            self.keys_differ += key_differs
            self.needless += key_differs and not source_differs
            if source_differs and not key_differs:
                self.unsound.append(f"unit {name}: {what}")

    def __str__(self):
        rate = self.needless / max(self.keys_differ, 1)
        return f"{self.compared} units compared, {self.keys_differ} misses, {rate:.0%} of them needless"


def walk(spec, steps, seed):
    """Specs for a CPU, each made from the one before by another value of one field whose path begins as the step says."""
    chance = random.Random(seed)
    for prefixes in steps:
        before = spec
        while spec is before:
            leaves = [leaf for leaf in perturb.leaves(spec) if leaf.path.startswith(prefixes)]
            leaf = chance.choice([leaf for leaf in leaves if leaf.others and not leaf.inside])
            with contextlib.suppress(SpecError):
                other = leaf.changed(chance.choice(leaf.others))
                spec = other if other.device.target is Target.CPU else before
        yield spec


def tally(sources, program, specs):
    """The comparison of each two of the specs."""
    found = Tally()
    for (one, spec), (two, other) in itertools.combinations(enumerate(specs), 2):
        found.add(sources.of(program, spec), sources.of(program, other), f"specs {one} and {two}")
    print(found)
    return found


def test_F31_different_source_means_different_keys(sources):
    """A few specs: each has one field changed that a unit reads, or could be taken to read."""
    spec = resolved_case("dspark")
    found = tally(sources, "support.small_units:few", [spec, *walk(spec, READ, seed=31)])
    assert found.unsound == []
    assert found.sources_differ > 0
    assert 0 < found.needless < found.keys_differ


def test_F31_a_key_that_forgets_a_field_is_found(sources, tmp_path):
    """The comparison can fail: a unit whose scope lacks what its code holds is named."""
    spec = plain_spec(tmp_path)
    deeper = perturb.put(spec, "model.num_hidden_layers", 3)
    assert tally(sources, "support.leaky:sound", [spec, deeper]).unsound == []
    unsound = tally(sources, "support.leaky:leaky", [spec, deeper]).unsound
    assert unsound == ["unit shift: specs 0 and 1"]


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["ngram", "eagle3", "dspark"])
def test_F31_different_source_means_different_keys_for_many_pairs(sources, name):
    """A long walk through all fields: each two of its specs are compared."""
    visited = walk(resolved_case(name), itertools.repeat(SEEN, 60), seed=name)
    found = tally(sources, "support.small_units:several", visited)
    assert found.unsound == []
    assert found.sources_differ > 500
