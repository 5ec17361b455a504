"""Every row of an explanation, whole: fields of sections in sections, secrets, and factors that a class adds."""

from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.keys.compare import Difference, Hidden, Kind
from graphspec.keys.explain import Factor, SpecDifference, _nearest, differences, factors_of

NAME = __name__
BOTH = tuple(Stage)
LATE = (Stage.CAPTURE,)
EARLY = (Stage.COMPILE,)
ADDED = "added by hash_factors of the method's class"
OF_CLASS = "the class of a section decides its properties and class variables"


@config_class
class Leaf:
    width: int = keyed(Stage.COMPILE, default=1, doc="Width.")
    seats: int = keyed(Stage.CAPTURE, default=2, doc="Seats.")
    label: str = unkeyed(default="l", doc="Label.", reason="only shown")


@config_class
class OtherLeaf:
    width: int = keyed(Stage.COMPILE, default=1, doc="Other width.")
    seats: int = keyed(Stage.CAPTURE, default=2, doc="Other seats.")
    label: str = unkeyed(default="l", doc="Label.", reason="never shown")


@config_class
class Branch:
    leaf: Leaf | OtherLeaf = keyed(Stage.COMPILE, doc="A leaf.")
    late: Leaf = keyed(Stage.CAPTURE, default=Leaf(), doc="A leaf of one key.")


@config_class
class Tree:
    branch: Branch | None = keyed(Stage.COMPILE, doc="A branch.")
    aside: Branch | None = unkeyed(default=None, doc="Aside.", reason="not compiled")
    facts: tuple[Leaf, ...] = keyed(Stage.COMPILE, default=(), doc="Facts.")
    token: str = unkeyed(default="a", doc="Token.", reason="a credential", secret=True)
    depth: int = keyed(Stage.CAPTURE, default=0, doc="Depth.")

    def key_factors(self, stage):
        """From a depth of one on: the depth at both stages, and a factor of its own at one."""
        if not self.depth:
            return {}
        return {"depth": self.depth, **({"beyond": (1,)} if stage is Stage.COMPILE else {})}


def row(path, value, stages, why):
    return Factor(path=path, value=value, stages=stages, why=why)


def leaf_rows(path, stages=BOTH, late=LATE, reason="only shown"):
    return (
        row(f"{path}.width", 1, stages, "Width." if stages else reason),
        row(f"{path}.seats", 2, late, "Seats." if late else reason),
        row(f"{path}.label", "l", (), reason),
    )


def test_every_field_has_its_row_in_order():
    """Value, stages and what it is for; the class of a section before its fields; additions last."""
    assert factors_of(Tree(branch=Branch(leaf=Leaf()), depth=3)) == (
        row("class", f"{NAME}.Tree", BOTH, OF_CLASS),
        row("branch:class", f"{NAME}.Branch", BOTH, OF_CLASS),
        row("branch.leaf:class", f"{NAME}.Leaf", BOTH, OF_CLASS),
        *leaf_rows("branch.leaf"),
        row("branch.late:class", f"{NAME}.Leaf", LATE, OF_CLASS),
        *leaf_rows("branch.late", stages=LATE),
        row("aside", None, (), "not compiled"),
        row("facts", (), BOTH, "Facts."),
        row("token", Hidden("a"), (), "a credential"),
        row("depth", 3, BOTH, f"Depth. At COMPILE {ADDED}."),
        row("beyond", (1,), EARLY, ADDED),
    )


def test_what_is_inside_an_unkeyed_section_has_the_sections_reason():
    """No class row, no stage, and one reason for all of it."""
    rows = factors_of(Tree(branch=None, aside=Branch(leaf=Leaf())))
    inside = {"stages": (), "late": (), "reason": "not compiled"}
    assert rows == (
        row("class", f"{NAME}.Tree", BOTH, OF_CLASS),
        row("branch", None, BOTH, "A branch."),
        *leaf_rows("aside.leaf", **inside),
        *leaf_rows("aside.late", **inside),
        row("facts", (), BOTH, "Facts."),
        row("token", Hidden("a"), (), "a credential"),
        row("depth", 0, LATE, "Depth."),
    )


def test_what_a_class_adds_to_both_keys_has_one_row():
    """With the value of the first of them, also below the top."""

    @config_class
    class Adding:
        def key_factors(self, stage):
            """One factor for both, one for the second."""
            more = {"late": 1} if stage is Stage.CAPTURE else {}
            return {"both": stage.value, **more}

    @config_class
    class Holder:
        inner: Adding = keyed(Stage.COMPILE, default=Adding(), doc="Inner.")

    assert factors_of(Holder())[2:] == (
        row("inner.both", "compile", BOTH, ADDED),
        row("inner.late", 1, LATE, ADDED),
    )


def test_an_unkeyed_field_that_a_class_adds_names_both_keys():
    """What it is for, and at which stages it is added all the same."""

    @config_class
    class Adding:
        seed: int = unkeyed(default=1, doc="Seed.", reason="not compiled")

        def key_factors(self, stage):
            """The unkeyed field."""
            return {"seed": self.seed}

    assert factors_of(Adding())[1:] == (
        row("seed", 1, BOTH, f"Seed. At COMPILE, CAPTURE {ADDED}."),
    )


def told(one, other):
    return [(str(d.difference), d.moves, d.why) for d in differences(one, other)]


def tree(**leaf):
    return Tree(branch=Branch(leaf=Leaf(**leaf)))


def test_a_difference_is_told_with_the_keys_that_it_moves():
    """COMPILE fields move both, CAPTURE fields one, unkeyed ones none; each in its own words."""
    assert told(tree(), tree()) == []
    assert told(tree(), tree(width=2, seats=3, label="m")) == [
        ("branch.leaf.width: 1 -> 2", BOTH, "Width."),
        ("branch.leaf.seats: 2 -> 3", LATE, "Seats."),
        ("branch.leaf.label: 'l' -> 'm'", (), "only shown"),
    ]
    assert differences(tree(), tree(width=2)) == (
        SpecDifference(
            difference=Difference(path="branch.leaf.width", before=1, after=2, kind=Kind.CHANGED),
            moves=BOTH,
            why="Width.",
        ),
    )


def test_another_class_is_told_and_the_first_specs_words_count():
    """Fields of one name in two classes: what the first spec says of them."""
    one = Tree(branch=Branch(leaf=Leaf()))
    other = Tree(branch=Branch(leaf=OtherLeaf(width=2, label="m")))
    assert told(one, other) == [
        ("branch.leaf: Leaf -> OtherLeaf (class)", BOTH, OF_CLASS),
        ("branch.leaf.width: 1 -> 2", BOTH, "Width."),
        ("branch.leaf.label: 'l' -> 'm'", (), "only shown"),
    ]
    assert told(other, one)[1:] == [
        ("branch.leaf.width: 2 -> 1", BOTH, "Other width."),
        ("branch.leaf.label: 'm' -> 'l'", (), "never shown"),
    ]


def test_two_specs_of_two_classes_differ_as_a_whole():
    """The class at the top moves both keys."""
    assert told(Leaf(), OtherLeaf()) == [("the whole: Leaf -> OtherLeaf (class)", BOTH, OF_CLASS)]


def test_sections_that_come_or_go_have_the_fields_words():
    """Of a section as a whole its doc or its reason is given, from whichever spec has it."""
    full = Tree(branch=Branch(leaf=Leaf()), aside=Branch(leaf=Leaf()))
    bare = Tree(branch=None)
    for pair in ((full, bare), (bare, full)):
        found = {d.difference.path: (d.moves, d.why) for d in differences(*pair)}
        assert found == {"branch": (BOTH, "A branch."), "aside": ((), "not compiled")}


@config_class
class Plain:
    pass


@config_class
class Grown(Plain):
    more: Branch = keyed(Stage.COMPILE, default=Branch(leaf=Leaf()), doc="More.")
    rest: Leaf = unkeyed(default=Leaf(), doc="Rest.", reason="never compiled")


@config_class
class Pot:
    inner: Plain = keyed(Stage.COMPILE, doc="Inner.")
    deep: Plain | None = unkeyed(default=None, doc="Deep.", reason="not compiled")


def test_a_section_that_only_one_class_has_is_told_as_a_whole():
    """Keyed ones by their doc, unkeyed ones by their reason; there is no row of a field to take it from."""
    pots = [Pot(inner=cls(), deep=cls()) for cls in (Plain, Grown)]
    for pair in (pots, pots[::-1]):
        found = {d.difference.path: (d.moves, d.why) for d in differences(*pair)}
        assert found == {
            "inner": (BOTH, OF_CLASS),
            "inner.more": (BOTH, "More."),
            "inner.rest": ((), "never compiled"),
            "deep": ((), OF_CLASS),
            "deep.more": ((), "not compiled"),
            "deep.rest": ((), "not compiled"),
        }


def test_what_is_inside_a_value_has_the_words_of_its_field():
    """A section in a list is named in it; the field says what it is for."""
    one, other = (Tree(branch=None, facts=(Leaf(), Leaf(width=w))) for w in (1, 2))
    assert told(one, other) == [("facts[1].width: 1 -> 2", BOTH, "Facts.")]


def test_additions_are_told_once_with_every_key_they_move():
    """A field that is added to another key moves both; an addition that is no field comes after all fields."""
    one, other = Tree(branch=None, depth=0), Tree(branch=None, depth=1)
    assert told(one, other) == [
        ("depth: 0 -> 1", BOTH, "Depth."),
        ("beyond: absent -> [1]", EARLY, ADDED),
    ]
    assert told(Tree(branch=None, depth=1), Tree(branch=None, depth=2)) == [
        ("depth: 1 -> 2", BOTH, f"Depth. At COMPILE {ADDED}.")
    ]


def test_a_secret_that_differs_is_hidden_and_moves_nothing():
    """Both sides stay unread."""
    one, other = Tree(branch=None, token="secret1"), Tree(branch=None, token="secret2")
    assert told(one, other) == [("token: (hidden) -> (hidden), and another", (), "a credential")]


def test_the_nearest_word_is_that_of_the_lowest_field_above():
    """One step at a time, through dots and brackets; nothing above says nothing."""
    why = {"a": "of a", "a.b": "of b"}
    assert _nearest(why, "a.b.c.d") == "of b"
    assert _nearest(why, "a.b[0]['x'].c") == "of b"
    assert _nearest(why, "a.x") == _nearest(why, "a[0]") == _nearest(why, "a") == "of a"
    assert _nearest(why, "x.y") == _nearest(why, "ab") == _nearest(why, "") == ""
    assert _nearest({"a[0]": "first"}, "a[0][1]") == "first"
