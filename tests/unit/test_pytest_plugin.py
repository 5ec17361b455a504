"""What tests of an engine get: the pytest plugin, and assertions on keys that explain themselves."""

import json

import pytest
from hypothesis import strategies as st

from graphspec.errors import UndeclaredFactorError
from graphspec.fields import Stage, evolve
from graphspec.keys import encoding
from graphspec.testing.keys import (
    GoldenAssertion,
    assert_keeps_key,
    assert_key_sound,
    assert_moves_key,
)
from graphspec.testing.spec_strategies import spec_pairs
from support import leaky
from support.processes import run_python
from support.specs import plain_spec

pytest_plugins = ["pytester"]


@pytest.fixture
def spec(tmp_path):
    """The contract of the tiny model."""
    return plain_spec(tmp_path / "model")


def changed(spec, **changes):
    """The contract with fields of its model changed."""
    return evolve(spec, model=evolve(spec.model, **changes))


def test_loading_the_plugin_loads_nothing_else():
    """A project that has graphspec installed and never uses it pays nothing."""
    code = """
        import sys
        import pytest
        before = set(sys.modules)
        import _graphspec_pytest
        print([n for n in sys.modules if n not in before])
        """
    assert run_python(code) == "['_graphspec_pytest']"


def test_a_run_without_the_fixtures_imports_no_graphspec(pytester):
    """Not at start either: entry points of pytest and of Hypothesis together load two small modules."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            found = {n for n in sys.modules if n.split(".")[0] == "graphspec"}
            assert found <= {"graphspec", "graphspec.testing", "graphspec.testing.hypothesis_plugin"}
            assert not {"torch", "attrs", "hypothesis.strategies"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


GOLDEN_TEST = """
    import pathlib
    from graphspec import EngineConfig

    def test_keys(graphspec_golden, graphspec_cache):
        sections = {SECTIONS}
        config = EngineConfig.from_dict({{"model": {{"source": {SOURCE!r}}}, **sections}})
        graphspec_golden(config.resolve(), "tiny")
        assert not graphspec_cache.exists()
    """


def golden_run(pytester, source, sections, *options):
    """One pytest run of a test with a golden, with the sections that its config has now."""
    pytester.makepyfile(test_engine=GOLDEN_TEST.format(SECTIONS=sections, SOURCE=str(source)))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def test_a_golden_is_written_compared_and_explained(pytester, spec):
    """Missing, then written beside the test, then equal; another key fails with the factor and the way to update."""
    source = spec.model.source
    first = golden_run(pytester, source, {})
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*there is no golden tiny in *goldens/test_engine/tiny.json*"])
    golden_run(pytester, source, {}, "--graphspec-update-goldens").assert_outcomes(passed=1)
    file = pytester.path / "goldens" / "test_engine" / "tiny.json"
    assert json.loads(file.read_text())["epoch"] == encoding.EPOCH
    golden_run(pytester, source, {}).assert_outcomes(passed=1)
    other = golden_run(pytester, source, {"scheduler": {"max_num_batched_tokens": 64}})
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(
        [
            "*tiny: the COMPILE key changed, *",
            "*  changed   scheduler.max_num_batched_tokens: 2048 -> 64",
            "*raise graphspec.keys.encoding.EPOCH*",
            "*pytest --graphspec-update-goldens",
        ]
    )


def test_a_golden_of_another_epoch_fails(tmp_path, spec, monkeypatch):
    """Also when no key differs: whoever raises the epoch writes the goldens anew in the same commit."""
    GoldenAssertion(folder=tmp_path, update=True)(spec, "tiny")
    golden = GoldenAssertion(folder=tmp_path)
    golden(spec, "tiny")
    monkeypatch.setattr(encoding, "EPOCH", encoding.EPOCH + 1)
    with pytest.raises(AssertionError, match="lock anew"):
        golden(spec, "tiny")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "two words"])
def test_a_golden_has_a_plain_name(tmp_path, spec, name):
    """It becomes a file beside the test and nowhere else."""
    with pytest.raises(ValueError, match="cannot name a golden"):
        GoldenAssertion(folder=tmp_path, update=True)(spec, name)
    assert not list(tmp_path.glob("*.json"))


def test_moving_a_key_is_asserted_with_the_reason_why_it_did_not(spec):
    """Each field that differs, and why no key, or not this one, contains it."""
    assert_moves_key(spec, changed(spec, rope_theta=5e5), Stage.COMPILE)
    other = changed(spec, tie_word_embeddings=not spec.model.tie_word_embeddings, max_model_len=64)
    with pytest.raises(AssertionError) as caught:
        assert_moves_key(spec, other, Stage.COMPILE)
    text = str(caught.value)
    assert text.startswith(f"both have the COMPILE key {spec.compute_hash(Stage.COMPILE)}\n")
    assert "model.tie_word_embeddings: true -> false (in no key): decides which tensor" in text
    assert "model.max_model_len: 128 -> 64 (CAPTURE): Longest sequence" in text
    with pytest.raises(AssertionError, match="they are equal"):
        assert_moves_key(spec, spec, Stage.CAPTURE)


def test_keeping_a_key_is_asserted_with_the_factors_that_moved_it(spec):
    """Each factor with both values."""
    assert_keeps_key(spec, changed(spec, max_model_len=64), Stage.COMPILE)
    with pytest.raises(AssertionError) as caught:
        assert_keeps_key(spec, changed(spec, max_model_len=64), Stage.CAPTURE)
    assert str(caught.value).endswith("  changed   model.max_model_len: 128 -> 64")


def layers(spec):
    """Contracts that differ in the number of layers, and in nothing else."""
    return st.integers(1, 3).map(lambda n: changed(spec, num_hidden_layers=n))


def test_a_key_that_forgets_a_field_is_unsound(spec):
    """One key and two graphs: the fields, and the lines of the graph that differ."""
    with pytest.raises(AssertionError) as caught:
        assert_key_sound(leaky.leaky, layers(spec))
    text = str(caught.value)
    assert "unit shift has one key, " in text
    assert "model.num_hidden_layers: " in text
    assert "-%1 = aten::add.Tensor(%0, " in text
    assert "+%1 = aten::add.Tensor(%0, " in text


def test_a_key_that_has_the_field_is_sound(spec):
    """Pairs from single specs, from tuples, and pairs that differ in one field."""
    assert_key_sound(leaky.sound, layers(spec))
    assert_key_sound(leaky.sound, st.tuples(layers(spec), layers(spec)), max_examples=5)
    assert_key_sound(leaky.sound, spec_pairs(st.just(spec)), max_examples=5)
    assert_key_sound(leaky.sound(spec).units(), layers(spec), max_examples=5)


@pytest.mark.deep
def test_pairs_find_the_forgotten_field_too(spec):
    """A search over all fields meets it."""
    pairs = spec_pairs(st.just(spec)).filter(lambda pair: pair.path == "model.num_hidden_layers")
    with pytest.raises(AssertionError, match="unit shift has one key"):
        assert_key_sound(leaky.leaky, pairs, max_examples=5)


def test_a_unit_that_only_sometimes_traces_is_unsound(spec):
    """One key, and a graph for one of the two specs alone."""
    with pytest.raises(AssertionError, match="one of them does not trace: "):
        assert_key_sound(leaky.half, layers(spec))
    even = st.sampled_from([2, 4]).map(lambda n: changed(spec, num_hidden_layers=n))
    assert_key_sound(leaky.half, even, max_examples=3)


def test_a_spec_that_the_program_refuses_is_passed_over(spec):
    """A strategy may give specs that this engine cannot run."""
    assert_key_sound(leaky.picky, layers(spec), max_examples=3)


def test_a_read_outside_the_scope_is_the_trace_s_own_error(spec):
    """The watch sees it before any graph is compared."""
    unit = leaky.sound(spec).units()[0]
    narrow = type(unit)(
        name=unit.name,
        scope=leaky.leaky(spec).units()[0].scope,
        modules=unit.modules,
        build=unit.build,
        inputs=unit.inputs,
    )
    with pytest.raises(UndeclaredFactorError, match=r"model\.num_hidden_layers"):
        assert_key_sound([narrow], layers(spec), max_examples=5)
