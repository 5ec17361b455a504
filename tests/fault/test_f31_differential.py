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

READ = (
    "model.rms_norm_eps",
    "model.hidden_size",
    "scheduler.max_num_batched_tokens",
    "speculative.num_speculative_tokens",
    "parallel.tensor_parallel_size",
)
"""Fields of which some are in code, some in a scope that is wider than needed, and some in the shapes of inputs."""
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
        for name in one.keys() & other.keys():
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


def walk(spec, prefixes, seed):
    """Specs for a CPU, each made from the one before by another value of one field, without end: the field and the two."""
    chance = random.Random(seed)
    while True:
        leaves = [leaf for leaf in perturb.leaves(spec) if leaf.path.startswith(prefixes)]
        leaf = chance.choice([leaf for leaf in leaves if leaf.others and not leaf.inside])
        with contextlib.suppress(SpecError):
            other = leaf.changed(chance.choice(leaf.others))
            if other.device.target is Target.CPU:
                yield leaf.path, spec, other
                spec = other


def tally(sources, program, pairs):
    found = Tally()
    for path, one, other in pairs:
        found.add(sources.of(program, one), sources.of(program, other), path)
    print(found)
    return found


def test_F31_different_source_means_different_keys(sources):
    """A few specs, each with one field changed that a unit could see."""
    steps = walk(resolved_case("dspark"), READ, seed=35)
    found = tally(sources, "support.small_units:few", itertools.islice(steps, 3))
    assert found.unsound == []
    assert found.sources_differ > 0
    assert 0 < found.needless < found.keys_differ


def test_F31_a_key_that_forgets_a_field_is_found(sources, tmp_path):
    """The comparison can fail: a unit whose scope lacks what its code holds is named, with the field."""
    spec = plain_spec(tmp_path)
    deeper = perturb.put(spec, "model.num_hidden_layers", 3)
    pair = ("model.num_hidden_layers", spec, deeper)
    assert tally(sources, "support.leaky:sound", [pair]).unsound == []
    assert tally(sources, "support.leaky:leaky", [pair]).unsound == [f"unit shift: {pair[0]}"]


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["ngram", "eagle3", "dspark"])
def test_F31_different_source_means_different_keys_for_many_pairs(sources, name):
    """A long walk through all fields: each two of its specs are compared."""
    steps = itertools.islice(walk(resolved_case(name), SEEN, seed=name), 60)
    visited = [other for _, _, other in steps]
    pairs = [
        (f"specs {one} and {two}", visited[one], visited[two])
        for one, two in itertools.combinations(range(60), 2)
    ]
    found = tally(sources, "support.small_units:several", pairs)
    assert found.unsound == []
    assert found.sources_differ > 500
