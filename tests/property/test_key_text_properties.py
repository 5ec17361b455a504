"""key_text writes a spec without building its factor tree, and must give the bytes of that tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.config.engine import EngineConfig
from graphspec.errors import KeyFactorError
from graphspec.fields import Stage, config_class, keyed
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.factors import factor_tree, key_text
from graphspec.testing.strategies import CONFIG_CLASSES, configs
from support.speculative import CASES, resolved_case


def by_way_of_the_tree(section, stage):
    """The definition: what the key text is the encoding of."""
    tree = factor_tree(section, stage)
    return encode({"epoch": EPOCH, "stage": stage.value, "factors": tree})


@given(data=st.data())
@pytest.mark.parametrize("stage", Stage)
def test_the_key_text_of_a_config_is_the_encoding_of_its_tree(stage, data):
    """For every config class, the whole included."""
    cls = data.draw(st.sampled_from([EngineConfig, *CONFIG_CLASSES]))
    config = data.draw(configs(cls))
    assert key_text(config, stage) == by_way_of_the_tree(config, stage)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("name", CASES)
def test_the_key_text_of_a_spec_is_the_encoding_of_its_tree(name, stage):
    """For specs of every method, with what its class adds."""
    spec = resolved_case(name)
    assert key_text(spec, stage) == by_way_of_the_tree(spec, stage)


@config_class
class Part:
    name: str = keyed(Stage.COMPILE, doc="Name.")


@config_class
class Whole:
    parts: tuple[Part, ...] = keyed(Stage.COMPILE, doc="Parts.")
    names: tuple[str, ...] = keyed(Stage.CAPTURE, default=(), doc="Names.")
    sizes: tuple[int, ...] = keyed(Stage.CAPTURE, default=(), doc="Sizes.")

    def key_factors(self, stage):
        """More, fields among it, which then count with the other value."""
        return {"sizes": len(self.sizes), "": "another class"} if self.sizes else {}


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=3),
    st.lists(st.integers(-5, 5000) | st.just(1 << 70), max_size=40),
)
def test_sections_in_lists_and_additions_count_as_in_the_tree(names, sizes):
    """Lists of sections, long lists of numbers, and additions that stand in for fields."""
    whole = Whole(parts=tuple(Part(name=n) for n in names), names=tuple(names), sizes=tuple(sizes))
    for stage in Stage:
        assert key_text(whole, stage) == by_way_of_the_tree(whole, stage)


def test_what_has_no_encoding_is_refused_with_its_path():
    """The short way knows no paths, so the tree is asked for one."""
    whole = Whole(parts=(Part(name="a"), Part(name="\udc80")))
    with pytest.raises(KeyFactorError) as caught:
        key_text(whole, Stage.COMPILE)
    (problem,) = caught.value.problems
    assert problem.where == "value.parts[1].name"
