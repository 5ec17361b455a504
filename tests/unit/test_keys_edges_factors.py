"""Factor trees and key texts at their edges: no field, one field, sections in lists, factors that a class adds."""

import pytest

from graphspec.errors import KeyFactorError, Problem
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.keys.encoding import EPOCH, decode, encode
from graphspec.keys.factors import (
    CLASS,
    _FactorWriters,
    classes_of,
    compute_hash,
    digest,
    factor_tree,
    flatten,
    key_text,
)

NAME = __name__


@config_class
class Bare:
    pass


@config_class
class Part:
    width: int = keyed(Stage.COMPILE, default=1, doc="Width.")


@config_class
class Wide(Part):
    seats: int = keyed(Stage.CAPTURE, default=2, doc="Seats.")
    label: str = unkeyed(default="a", doc="Label.", reason="only shown")


@config_class
class Whole:
    zeta: int = keyed(Stage.COMPILE, default=1, doc="Written last.")
    part: Part | None = keyed(Stage.COMPILE, default=None, doc="A section.")
    parts: tuple[Part, ...] = keyed(Stage.COMPILE, default=(), doc="Sections in a list.")
    late: Part | None = keyed(Stage.CAPTURE, default=None, doc="A section of one key.")
    aside: Part | None = unkeyed(default=None, doc="In no key.", reason="only shown")
    bare: Bare | None = keyed(Stage.CAPTURE, default=None, doc="A section without fields.")


@config_class
class Adding:
    depth: int = keyed(Stage.CAPTURE, doc="Depth.")

    def key_factors(self, stage):
        """The depth also at COMPILE when it is odd, and a factor that is no field."""
        if self.depth == 0:
            return {}
        return {"depth": -self.depth, "stage": stage, "a": (1,)}


def part(cls=f"{NAME}.Part", **fields):
    return {CLASS: cls, **fields}


WHOLE = Whole(
    part=Wide(width=3, seats=4),
    parts=(Part(), Wide(width=5)),
    late=Part(width=6),
    aside=Part(width=7),
    bare=Bare(),
)
AT_COMPILE = {
    CLASS: f"{NAME}.Whole",
    "zeta": 1,
    "part": part(f"{NAME}.Wide", width=3),
    "parts": (part(width=1), part(f"{NAME}.Wide", width=5)),
}
AT_CAPTURE = {
    **AT_COMPILE,
    "part": part(f"{NAME}.Wide", width=3, seats=4),
    "parts": (part(width=1), part(f"{NAME}.Wide", width=5, seats=2)),
    "late": part(width=6),
    "bare": part(f"{NAME}.Bare"),
}


def test_a_tree_has_the_fields_of_its_stage_and_the_class_of_each_section():
    """COMPILE fields in both, CAPTURE fields in one, unkeyed ones in none, at every depth."""
    assert factor_tree(WHOLE, Stage.COMPILE) == AT_COMPILE
    assert factor_tree(WHOLE, Stage.CAPTURE) == AT_CAPTURE
    assert factor_tree(Bare(), Stage.COMPILE) == {CLASS: f"{NAME}.Bare"}


def test_what_a_class_adds_counts_before_its_fields():
    """An addition under the name of a field takes its place; at a stage without the field it is new."""
    added = {CLASS: f"{NAME}.Adding", "depth": -3, "a": (1,)}
    assert factor_tree(Adding(depth=3), Stage.COMPILE) == {**added, "stage": Stage.COMPILE}
    assert factor_tree(Adding(depth=3), Stage.CAPTURE) == {**added, "stage": Stage.CAPTURE}
    assert factor_tree(Adding(depth=0), Stage.COMPILE) == {CLASS: f"{NAME}.Adding"}
    assert factor_tree(Adding(depth=0), Stage.CAPTURE) == {CLASS: f"{NAME}.Adding", "depth": 0}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize(
    "section",
    [
        WHOLE,
        Whole(),
        Bare(),
        Part(),
        Wide(),
        Adding(depth=0),
        Adding(depth=3),
        Whole(parts=tuple(Part(width=i) for i in range(40))),
    ],
    ids=str,
)
def test_the_key_text_is_the_encoding_of_the_tree(section, stage):
    """Written without building the tree, byte for byte; the hash is that of the text."""
    tree = factor_tree(section, stage)
    text = encode({"epoch": EPOCH, "stage": stage.value, "factors": tree})
    assert key_text(section, stage) == text
    assert decode(text) == {"epoch": EPOCH, "stage": stage.value, "factors": decode(encode(tree))}
    assert compute_hash(section, stage) == digest(text)


def test_each_table_of_writers_is_of_one_stage():
    """A new one writes as the one in use does."""
    section = Adding(depth=3)
    for stage in Stage:
        tree = factor_tree(section, stage)
        assert _FactorWriters(stage)[Adding](section) == encode(tree)


def test_the_digest_is_the_one_that_xxhash_states():
    """The value of XXH3-128 for no bytes at all, and 32 digits for any."""
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"
    assert len(digest(b"a")) == 32


def test_flatten_gives_leaves_and_classes_of_gives_sections():
    """Paths at any depth, below a prefix if one is asked for; a mapping without a class is one value."""
    tree = {CLASS: "A", "b": {CLASS: "B", "c": {CLASS: "C", "d": 1}}, "m": {"k": 2}, "e": (3,)}
    assert list(flatten(tree)) == [("b.c.d", 1), ("m", {"k": 2}), ("e", (3,))]
    assert dict(flatten(tree, "x")) == {"x.b.c.d": 1, "x.m": {"k": 2}, "x.e": (3,)}
    assert list(classes_of(tree)) == [("b", "B"), ("b.c", "C")]
    assert list(classes_of(tree, "x")) == [("x.b", "B"), ("x.b.c", "C")]


@config_class
class Texts:
    name: str = keyed(Stage.COMPILE, default="a", doc="Name.")
    names: tuple[str, ...] = keyed(Stage.COMPILE, default=(), doc="Names.")


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize(
    ("section", "where"),
    [(Texts(name="\udc80"), "name"), (Texts(names=("a", "\udc80")), "names[1]")],
    ids=ascii,
)
def test_what_no_key_can_hold_is_named_by_its_field(section, where, stage):
    """The path begins at the section."""
    with pytest.raises(KeyFactorError) as caught:
        key_text(section, stage)
    assert caught.value.problems == (
        Problem(
            where=f"value.{where}",
            found="a string with a lone surrogate",
            wanted="text that UTF-8 can hold",
            hint="such strings come from undecodable file names; use the name's bytes",
        ),
    )
