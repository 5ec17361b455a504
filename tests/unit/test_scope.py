"""The view that a unit is traced through: what it records, and what it refuses."""

import inspect
from typing import ClassVar

import attrs
import pytest

from graphspec.errors import UndeclaredFactorError
from graphspec.fields import Stage, config_class, is_config_class, keyed, policies, unkeyed
from graphspec.keys.scope import RecordingView, Scope, reads_as_text
from support.specs import plain_spec
from support.speculative import resolved_case


@config_class
class Drafter:
    bakes: ClassVar[bool] = False
    depth: int = keyed(Stage.COMPILE, doc="Depth.", default=2)

    def rows(self, count):
        return self.depth * count


@config_class
class OtherDrafter(Drafter):
    bakes: ClassVar[bool] = True


@config_class
class Inner:
    width: int = keyed(Stage.COMPILE, doc="Width.", default=8)
    height: int = keyed(Stage.COMPILE, doc="Height.", default=4)
    blocks: int = keyed(Stage.CAPTURE, doc="Blocks.", default=16)
    name: str = unkeyed(doc="Name.", reason="shown only", default="x")

    @property
    def area(self):
        return self.width * self.height

    @property
    def tokens(self):
        return self.width * self.blocks


@config_class
class Whole:
    inner: Inner = keyed(Stage.COMPILE, doc="Inner.", default=Inner())
    drafter: Drafter | None = keyed(Stage.COMPILE, doc="Optional.", default=None)
    method: Drafter = keyed(Stage.COMPILE, doc="Chosen by the config.", default=OtherDrafter())
    depth: int = keyed(Stage.COMPILE, doc="Depth.", default=2)


def view(*paths, whole=None):
    reads = {}
    return RecordingView(whole or Whole(), Scope(paths), reads), reads


def test_reads_inside_the_scope_are_recorded_in_order_of_first_use():
    """A read returns the field's value and lands in the read set once, under its dotted path."""
    spec, reads = view("inner", "depth")
    assert (spec.inner.height, spec.depth, spec.inner.width, spec.depth) == (4, 2, 8, 2)
    assert list(reads.items()) == [("inner.height", 4), ("depth", 2), ("inner.width", 8)]
    assert reads_as_text(reads) == ["depth", "inner.height", "inner.width"]


def test_walking_to_a_section_is_not_a_read():
    """Only fields are recorded: reaching the section that holds them says nothing about its content."""
    spec, reads = view("depth")
    assert repr(spec.inner) == "<watched inner>"
    assert reads == {}


def line_of(function):
    """File and line of the second line of a function."""
    return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1] + 1}"


def test_a_read_outside_the_scope_names_the_field_and_the_line():
    """The error says which field was read, at which line of code, and what the scope is."""
    spec, reads = view("inner.width")

    def trace():
        return spec.inner.height

    with pytest.raises(UndeclaredFactorError) as caught:
        trace()
    (problem,) = caught.value.problems
    assert problem.where == "inner.height"
    assert line_of(trace) in problem.found
    assert "inner.width" in problem.wanted
    assert reads == {}


@pytest.mark.parametrize("name", ["blocks", "name"])
def test_a_field_that_no_compile_key_holds_is_refused_even_in_scope(name):
    """CAPTURE-only and unkeyed fields cannot be read by code that is compiled."""
    spec, reads = view("inner")

    def trace():
        return getattr(spec.inner, name)

    with pytest.raises(UndeclaredFactorError) as caught:
        trace()
    (problem,) = caught.value.problems
    assert problem.where == f"inner.{name}"
    assert line_of(trace) in problem.found
    assert reads == {}


def test_a_path_is_not_a_prefix_of_a_longer_name():
    """The scope "inner.w" does not cover inner.width."""
    spec, _ = view("inner.w")
    with pytest.raises(UndeclaredFactorError):
        _ = spec.inner.width


def test_properties_run_through_the_view():
    """What a property reads is recorded, and refused when it lies outside."""
    spec, reads = view("inner")
    assert spec.inner.area == 32
    assert reads == {"inner.width": 8, "inner.height": 4}
    with pytest.raises(UndeclaredFactorError) as caught:
        _ = spec.inner.tokens
    assert caught.value.problems[0].where == "inner.blocks"


def test_methods_run_through_the_view():
    """A method's reads are recorded too."""
    spec, reads = view("drafter", whole=Whole(drafter=Drafter(depth=3)))
    assert spec.drafter.rows(5) == 15
    assert reads == {"drafter.depth": 3}


@pytest.mark.parametrize("drafter", [None, Drafter()])
def test_asking_whether_an_optional_section_is_there_is_a_read(drafter):
    """Present or absent, an optional section outside the scope is refused: the key would not tell them apart."""
    spec, _ = view("inner", whole=Whole(drafter=drafter))
    with pytest.raises(UndeclaredFactorError) as caught:
        _ = spec.drafter is None
    assert caught.value.problems[0].where == "drafter"
    spec, _ = view("drafter", whole=Whole(drafter=drafter))
    assert (spec.drafter is None) is (drafter is None)


def test_facts_of_a_class_that_the_config_chose_are_reads():
    """A ClassVar of a section whose class the config chooses is refused outside the scope."""
    spec, _ = view("inner")
    with pytest.raises(UndeclaredFactorError) as caught:
        _ = spec.method.bakes
    assert caught.value.problems[0].where == "method"
    spec, _ = view("method")
    assert spec.method.bakes is True


@pytest.mark.parametrize(
    "compare",
    [
        lambda a: a == a,
        lambda a: a != a,
        lambda a: a == Inner(),
        lambda a: a in [Inner()],
    ],
)
def test_comparing_a_whole_section_is_refused(compare):
    """A comparison would read fields that the scope does not name."""
    spec, _ = view("inner")
    with pytest.raises(UndeclaredFactorError) as caught:
        compare(spec.inner)
    assert caught.value.problems[0].where == "inner"


def test_a_watched_section_has_no_hash():
    """A section cannot be a dictionary key during a trace."""
    spec, _ = view("inner")
    with pytest.raises(TypeError):
        hash(spec.inner)


def test_a_watched_spec_has_no_key():
    """Hashing the view itself fails instead of reading everything."""
    from graphspec.keys.factors import compute_hash

    spec, _ = view("inner")
    with pytest.raises(attrs.exceptions.NotAnAttrsClassError):
        compute_hash(spec, Stage.COMPILE)


def test_a_misspelled_field_is_an_attribute_error():
    """The view is no blank cheque: unknown names fail as they do on the section."""
    spec, _ = view("inner")
    with pytest.raises(AttributeError):
        _ = spec.inner.witdh


def test_a_scope_gives_the_compile_factors_below_its_paths():
    """factors() holds the COMPILE fields that the paths cover, and the class of each section they reach; no others."""
    inner = {"inner:class": f"{type(Whole().inner).__module__}.{type(Whole().inner).__qualname__}"}
    assert Scope(("inner", "depth")).factors(Whole()) == {
        "inner.width": 8,
        "inner.height": 4,
        "depth": 2,
        **inner,
    }
    assert Scope(("inner.width",)).factors(Whole()) == {"inner.width": 8, **inner}
    assert Scope(("depth",)).factors(Whole()) == {"depth": 2}
    assert Scope(()).factors(Whole()) == {}


def test_two_classes_with_equal_fields_do_not_share_a_key(tmp_path):
    """A class decides properties and ClassVars that a trace may read, so it is a factor wherever a scope reaches it."""
    from graphspec.fields import evolve
    from graphspec.speculators.base import SpeculatorConfig

    spec = plain_spec(tmp_path)

    def factors(cls):
        drafting = evolve(spec.speculative, speculator=cls())
        return Scope(("speculative.method", "speculative.speculator.width")).factors(
            evolve(spec, speculative=drafting)
        )

    @config_class
    class One(SpeculatorConfig):
        width: int = keyed(Stage.COMPILE, default=1, doc="A field.")

    @config_class
    class Two(SpeculatorConfig):
        width: int = keyed(Stage.COMPILE, default=1, doc="A field.")

    assert factors(One) != factors(Two)


@pytest.mark.parametrize(
    "path", ["inner.blocks", "inner.name", "iner", "inner.width.x", "inne", ""]
)
def test_a_scope_path_that_names_no_compile_factor_is_refused(path):
    """An idle path would promise a key that covers it; the known paths are listed."""
    with pytest.raises(UndeclaredFactorError) as caught:
        Scope(("depth", path)).factors(Whole())
    (problem,) = caught.value.problems
    assert path in problem.where
    assert "inner.width" in problem.hint


COMPILED = "model parallel scheduler kv_cache kernels speculative lora device program".split()
EVERYTHING = {
    "kv_cache": {"connector": {"name": "c"}},
    "lora": {"max_loras": 2},
    "watermark": {"key": 7, "algorithm": "dual_key_gumbel"},
}


@pytest.mark.parametrize(
    ("name", "sections"),
    [("ngram", {}), ("eagle3", EVERYTHING), ("dspark", {"lora": {}}), ("custom_class", {})],
)
def test_every_field_of_a_real_spec_is_either_recorded_or_refused(name, sections):
    """On the engine's own spec: a COMPILE factor reads as it is, everything else raises."""
    spec = resolved_case(name, **sections)
    known = Scope(tuple(COMPILED)).factors(spec)
    reads = {}
    seen, refused = {}, set()

    def walk(section, watched, path):
        for name in policies(type(section)):
            below = f"{path}.{name}" if path else name
            if is_config_class(type(getattr(section, name))):
                walk(getattr(section, name), getattr(watched, name), below)
                continue
            try:
                seen[below] = getattr(watched, name)
            except UndeclaredFactorError:
                refused.add(below)

    paths = tuple(policies(type(spec)))
    walk(spec, RecordingView(spec, Scope(paths), reads), "")
    fields = {path: value for path, value in known.items() if not path.endswith(":class")}
    assert seen == reads == fields
    assert refused >= {"model.source", "kv_cache.num_blocks", "mode.granted", "runner.granted"}
    assert refused >= {"runner.facts.full_graphs_per_k", "scheduler.async_scheduling", "notes"}
    assert not refused & fields.keys()


def test_a_unit_may_read_the_depth_only_where_graphs_bake_it_in():
    """A scope that holds the speculative section covers k for methods with k in their shapes, and for no other."""

    def key(name, k):
        return Scope(("speculative",)).factors(resolved_case(name, {"num_speculative_tokens": k}))

    path = "speculative.num_speculative_tokens"
    assert (key("dflash", 4)[path], key("dflash", 5)[path]) == (4, 5)
    assert path not in key("eagle3", 4)
    assert key("eagle3", 4) == key("eagle3", 5)
