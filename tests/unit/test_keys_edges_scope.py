"""The watched view to the letter: what it records, the whole of each refusal, and paths that nearly match."""

import inspect
from typing import ClassVar

import pytest

from graphspec.errors import Problem, UndeclaredFactorError
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.keys.factors import CLASS
from graphspec.keys.scope import RecordingView, Scope, reads_as_text

NAME = __name__


@config_class
class Leaf:
    width: int = keyed(Stage.COMPILE, default=8, doc="Width.")
    seats: int = keyed(Stage.CAPTURE, default=2, doc="Seats.")
    label: str = unkeyed(default="l", doc="Label.", reason="only shown")


@config_class
class Branch:
    kind: ClassVar[str] = "branch"
    leaf: Leaf = keyed(Stage.COMPILE, default=Leaf(), doc="A leaf.")
    other: Leaf | None = keyed(Stage.COMPILE, default=Leaf(), doc="Another leaf, or none.")
    depth: int = keyed(Stage.COMPILE, default=2, doc="Depth.")

    @property
    def area(self):
        """Of the leaf."""
        return self.leaf.width * self.depth

    def rows(self, count, *, each=1):
        """So many."""
        return self.depth * count * each


@config_class
class Whole:
    branch: Branch = keyed(Stage.COMPILE, default=Branch(), doc="A branch.")
    aside: Leaf = unkeyed(default=Leaf(), doc="Aside.", reason="not compiled")
    depth: int = keyed(Stage.COMPILE, default=3, doc="Depth.")


def view(*paths, whole=None):
    reads = {}
    return RecordingView(whole or Whole(), Scope(paths), reads), reads


def refusal_of(look):
    """The problem that a look raises, with the line of it named."""
    with pytest.raises(UndeclaredFactorError) as caught:
        look()
    (problem,) = caught.value.problems
    lines, first = inspect.getsourcelines(look)
    place = f" at {__file__}:{first + len(lines) - 1}"
    assert problem.found.endswith(place)
    return problem, place


ADD = "add the path to the unit's scope, so that the key covers it"


def test_a_field_outside_the_scope_is_refused():
    """Which field, at which line, what the scope is, and what to do; nothing is recorded."""
    spec, reads = view("branch.leaf", "branch.dept")

    def look():
        return spec.branch.depth

    problem, place = refusal_of(look)
    assert problem == Problem(
        where="branch.depth",
        found=f"a read of this field{place}",
        wanted="a read inside the scope ('branch.leaf', 'branch.dept')",
        hint=ADD,
    )
    assert reads == {}


def test_a_section_that_the_config_chooses_is_refused_outside_the_scope():
    """Whether it is there is itself a read."""
    spec, _ = view("branch.leaf")

    def look():
        return spec.branch.other

    problem, place = refusal_of(look)
    assert problem == Problem(
        where="branch.other",
        found=f"a read of a section that may be absent or of another class{place}",
        wanted="a read inside the scope ('branch.leaf',)",
        hint=ADD,
    )


@pytest.mark.parametrize(
    ("paths", "name", "path"),
    [(("branch",), "seats", "branch.leaf.seats"), (("branch.leaf.label",), "label", None)],
)
def test_a_field_in_no_compile_key_is_refused_inside_the_scope(paths, name, path):
    """Its declaration says that no compiled code depends on it."""
    spec, reads = view(*paths)

    def look():
        return getattr(spec.branch.leaf, name)

    problem, place = refusal_of(look)
    assert problem == Problem(
        where=path or f"branch.leaf.{name}",
        found=f"a read of a field that no COMPILE key contains{place}",
        wanted="a field declared keyed(Stage.COMPILE, ...)",
        hint="if compiled code depends on it, its declaration is wrong: change it there",
    )
    assert reads == {}


def test_a_compile_field_of_an_unkeyed_section_is_in_no_key():
    """The section's own declaration counts."""
    spec, _ = view("aside")
    with pytest.raises(
        UndeclaredFactorError, match=r"aside\.width: found a read of a field that no"
    ):
        _ = spec.aside.width


@pytest.mark.parametrize(("below", "where"), [(False, "spec"), (True, "branch")])
def test_a_comparison_of_a_section_is_refused(below, where):
    """By its path, or as the spec."""
    spec, _ = view("branch")
    section = spec.branch if below else spec

    def look():
        return section == 1

    problem, place = refusal_of(look)
    assert problem == Problem(
        where=where,
        found=f"a comparison of a whole section{place}",
        wanted="comparisons of single fields",
        hint="a whole section compares fields that the scope does not name",
    )


def test_reads_are_recorded_once_in_order():
    """With the values that they had; properties and methods read through the view."""
    spec, reads = view("branch", "depth")
    assert (spec.depth, spec.branch.area, spec.branch.rows(5, each=2), spec.depth) == (3, 16, 20, 3)
    assert list(reads.items()) == [("depth", 3), ("branch.leaf.width", 8), ("branch.depth", 2)]
    assert reads_as_text(reads) == ["branch.depth", "branch.leaf.width", "depth"]


def test_what_a_class_holds_is_no_read():
    """A class variable is given as it is, and a name that nobody has is an AttributeError."""
    spec, reads = view("branch.other.width")
    assert spec.branch.kind == "branch"
    assert spec.branch.other.width == 8
    assert reads == {"branch.other.width": 8}
    with pytest.raises(AttributeError):
        _ = spec.branch.nothing


def test_a_section_that_is_always_there_may_be_walked_to():
    """Outside the scope too: that it is there says nothing."""
    spec, reads = view("depth")
    assert repr(spec.branch.leaf) == "<watched branch.leaf>"
    assert reads == {}


def test_a_view_says_what_it_watches():
    """By path; the spec itself by its class."""
    spec, _ = view("branch.other")
    shown = (repr(spec), repr(spec.branch), repr(spec.branch.other))
    assert shown == ("<watched Whole>", "<watched branch>", "<watched branch.other>")


@pytest.mark.parametrize(
    ("path", "covered", "reached"),
    [
        ("a.b", True, True),
        ("a.b.c", True, True),
        ("a", False, True),
        ("a.bc", False, False),
        ("a.", False, False),
        ("x", True, True),
        ("x.y", True, True),
        ("y", False, False),
        ("", False, False),
    ],
)
def test_a_scope_covers_what_is_below_and_reaches_what_is_above(path, covered, reached):
    """Whole names count, never the begin of one."""
    scope = Scope(("a.b", "x"))
    assert (scope.covers(path), scope.reaches(path)) == (covered, reached)


def test_the_factors_of_a_scope_are_its_fields_and_the_classes_on_their_way():
    """Classes above and below its paths, and no others."""
    classes = {
        "branch:class": f"{NAME}.Branch",
        "branch.leaf:class": f"{NAME}.Leaf",
        "branch.other:class": f"{NAME}.Leaf",
    }
    assert Scope(("branch.leaf",)).factors(Whole()) == {
        "branch.leaf.width": 8,
        "branch:class": classes["branch:class"],
        "branch.leaf:class": classes["branch.leaf:class"],
    }
    assert Scope(("branch", "depth")).factors(Whole()) == {
        "branch.leaf.width": 8,
        "branch.other.width": 8,
        "branch.depth": 2,
        "depth": 3,
        **classes,
    }
    assert Scope(("depth",)).factors(Whole()) == {"depth": 3}
    assert CLASS not in Scope(("branch",)).factors(Whole())


def test_idle_paths_of_a_scope_are_refused_one_by_one():
    """Each with the paths that there are."""
    with pytest.raises(UndeclaredFactorError) as caught:
        Scope(("depth", "dept", "branch.leaf.seats", "branch.leaf")).factors(Whole())
    assert caught.value.problems == tuple(
        Problem(
            where=f"scope path {path}",
            found="no COMPILE-keyed field of this spec at that path",
            wanted="a field or section whose fields are declared keyed(Stage.COMPILE, ...)",
            hint="known: branch.leaf.width, branch.other.width, branch.depth, depth",
        )
        for path in ("dept", "branch.leaf.seats")
    )
