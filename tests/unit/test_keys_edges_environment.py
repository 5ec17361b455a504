"""The table of variables at its edges: patterns that nearly match, order of rows, and what is hidden."""

import os

import pytest

from graphspec.errors import KeyFactorError, Problem
from graphspec.keys import environment
from graphspec.keys.environment import (
    HIDDEN,
    Effect,
    Variable,
    _index,
    _matches,
    capture_environment,
    code_environment,
    declared_environment,
    is_secret,
    lookup,
    shown,
    unknown_variables,
)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("A_*", "A_", True),
        ("A_*", "A_B", True),
        ("A_*", "A", False),
        ("A_*", "BA_", False),
        ("*_A", "_A", True),
        ("*_A", "B_A", True),
        ("*_A", "_AB", False),
        ("*A*", "A", True),
        ("*A*", "BAC", True),
        ("*A*", "B", False),
        ("*A*", "", False),
        ("A*A", "AA", True),
        ("A*A", "A", False),
        ("A*A", "AB", False),
        ("AB*BA", "ABA", False),
        ("AB*BA", "ABBA", True),
        ("X*A*Y", "XAY", True),
        ("X*A*Y", "XY", False),
        ("X*A*Y", "XBAY", True),
        ("X*A*A", "XA", False),
        ("X*A*A", "XAA", True),
        ("AX*A*Y", "AXY", False),
        ("X*A*B*Y", "XABY", True),
        ("X*A*B*Y", "XBAY", False),
        ("X*A*A*Y", "XAY", False),
        ("X*A*A*Y", "XAAY", True),
        ("X*AB*B*Y", "XABY", False),
        ("X*AB*B*Y", "XABBY", True),
        ("X*AB*Y", "XAY", False),
        ("X*AB*BY", "XABY", False),
        ("*", "", True),
        ("**", "A", True),
    ],
)
def test_a_star_stands_for_any_text(pattern, name, matches):
    """The parts of a pattern come in order, and none is counted twice."""
    assert _matches(pattern, name) is matches


@pytest.fixture
def table(monkeypatch):
    """Puts a table of a few rows in place of the real one."""
    from graphspec.keys import variables

    rows = [
        ("LIB_*", Effect.CAPTURE),
        ("LIB_CODE_*", Effect.CODE),
        ("LIB_C*", Effect.HOST),
        ("LIB_CODE_ONE", Effect.NOTHING),
        ("*_TOKEN", Effect.SECRET),
        ("LIB_PLAIN_TOKEN", Effect.CODE),
    ]
    made = tuple(Variable(name=n, effect=e, owner="o", reason="r") for n, e in rows)
    monkeypatch.setattr(variables, "TABLE", made)
    monkeypatch.setattr(variables, "KNOWN_PREFIXES", ("LIB_", "UNKNOWN_"))
    _index.cache_clear()
    lookup.cache_clear()
    yield
    monkeypatch.undo()
    _index.cache_clear()
    lookup.cache_clear()


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("LIB_CODE_ONE", "LIB_CODE_ONE"),
        ("LIB_CODE_TWO", "LIB_CODE_*"),
        ("LIB_CUE", "LIB_C*"),
        ("LIB_X", "LIB_*"),
        ("LIB_CODE_TOKEN", "*_TOKEN"),
        ("LIB_PLAIN_TOKEN", "LIB_PLAIN_TOKEN"),
        ("OTHER", None),
    ],
)
@pytest.mark.usefixtures("table")
def test_the_row_of_a_name_is_the_most_exact_one(name, row):
    """Its own, then a secret's pattern, then the longest."""
    found = lookup(name)
    assert (found and found.name) == row
    assert is_secret(name) is (row == "*_TOKEN")


@pytest.mark.usefixtures("table")
def test_maps_hold_what_is_set_by_effect_and_name():
    """Sorted; unknown names are those with a known begin and no row."""
    environ = {
        "LIB_Y": "1",
        "LIB_X": "2",
        "LIB_CODE_B": "3",
        "LIB_CODE_A": "4",
        "LIB_CODE_ONE": "5",
        "UNKNOWN_B": "6",
        "UNKNOWN_A": "7",
        "ELSE": "8",
        "MY_TOKEN": "9",
    }
    assert list(code_environment(environ).items()) == [("LIB_CODE_A", "4"), ("LIB_CODE_B", "3")]
    assert list(capture_environment(environ).items()) == [("LIB_X", "2"), ("LIB_Y", "1")]
    assert unknown_variables(environ) == ["UNKNOWN_A", "UNKNOWN_B"]


def test_values_are_shown_but_for_secrets_and_passwords():
    """Sorted; hidden by name, or by the form of the value."""
    environ = {"Z": "1", "HF_TOKEN": "t", "A": "http://a:b@c", "B": "http://a@c", "C": "a:b@c"}
    assert list(shown(environ).items()) == [
        ("A", HIDDEN),
        ("B", "http://a@c"),
        ("C", "a:b@c"),
        ("HF_TOKEN", HIDDEN),
        ("Z", "1"),
    ]
    assert environment.HIDDEN == "(hidden)"


def test_declared_variables_are_read_where_they_are_set(monkeypatch):
    """The process's own environment, sorted by name; None for what is not set."""
    monkeypatch.setenv("B_SWITCH", "on")
    monkeypatch.delenv("A_SWITCH", raising=False)
    assert list(declared_environment(["B_SWITCH", "A_SWITCH"]).items()) == [
        ("A_SWITCH", None),
        ("B_SWITCH", os.environ["B_SWITCH"]),
    ]
    assert declared_environment([]) == {}


def test_declared_secrets_are_refused_one_by_one():
    """Each by its name, whole."""
    with pytest.raises(KeyFactorError) as caught:
        declared_environment(["HF_TOKEN", "RANK", "MY_PASSWORD"])
    assert caught.value.problems == tuple(
        Problem(
            where=f"environment variable {name}",
            found="the name of a secret",
            wanted="a variable whose value may be stored in a key",
            hint="code that is compiled cannot need a credential: read it outside of the unit",
        )
        for name in ("HF_TOKEN", "MY_PASSWORD")
    )
