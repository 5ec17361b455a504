"""What the instructions of a function say it can read: globals, attributes taken at once, imports, sets in order."""

import inspect
import re

import pytest

from graphspec.keys.loads import Load, Reads, reads_of

one = other = None
"""Globals that the functions below name and never use: they do not run."""


def line_of(function, text):
    """The line of the file at which a function holds a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if re.search(rf"\b{text}", line))


def alone():
    return one


def chained():
    return one.a.b.c


def called():
    return one.method(other.b)


def several():
    first = one
    return first, other.x


def looped():
    for x in one:
        return x
    return [y.z for y in other.names]


def unpacked():
    a, b = one
    c, *d = other.pair
    return a, b, c, d, [*one]


def in_order():
    return list(one), tuple(other.x), enumerate(one), iter(one), ",".join(other)


def not_in_order():
    return sorted(one), sum(other.x), set(one), one(list)


def set_looped():
    for x in {"a", "b"}:  # noqa: PLC0208 - the mistake
        return x
    return "c" in {"c", "d"}


def set_listed():
    return list({"e", "f"}), sorted({"g", "h"})


IMPORTS = """def f():
    from json import dumps, loads
    from math import pi as circle
    from . import near
    from .. import far as away
    from ..other.place import thing
"""


def imports_whole():
    import json.decoder

    return json.decoder.x


def load(function, name, *attributes, text=None, in_order=False, module=""):
    return Load(name, attributes, line_of(function, text or name), in_order, module)


def loads(function):
    return reads_of(function.__code__).loads


def test_a_global_is_loaded_with_the_attributes_that_are_taken_at_once():
    """In order of the code, with the line of the load; an attribute of a local is none."""
    assert loads(alone) == (load(alone, "one"),)
    assert loads(chained) == (load(chained, "one", "a", "b", "c"),)
    assert loads(called) == (load(called, "one", "method"), load(called, "other", "b"))
    assert loads(several) == (load(several, "one"), load(several, "other", "x"))


def test_members_taken_one_after_the_other_are_told():
    """By a loop, by unpacking, and by calls that keep the order."""
    assert loads(looped)[0] == load(looped, "one", in_order=True)
    assert loads(unpacked) == (
        load(unpacked, "one", text="a, b", in_order=True),
        load(unpacked, "other", "pair", in_order=True),
        load(unpacked, "one", text="c, d, ", in_order=True),
    )
    wanted = {"one": True, "other": True}
    calls = ("list", "tuple", "enumerate", "iter")
    assert [(it.name, it.in_order) for it in loads(in_order) if it.name not in calls] == [
        ("one", True),
        ("other", True),
        ("one", True),
        ("one", True),
        ("other", True),
    ]
    assert set(wanted) < {it.name for it in loads(in_order)}
    assert not any(it.in_order for it in loads(not_in_order))


def sets(function):
    return reads_of(function.__code__).sets


def test_sets_that_are_gone_through_are_told_with_their_line():
    """A loop and a list take their order; a test of membership and a sort do not."""
    assert sets(set_looped) == ((frozenset({"a", "b"}), line_of(set_looped, "for x")),)
    code = compile("list(S)\nfor x in {'a', 'b'}: pass\n'c' in {'c', 'd'}", "", "exec")
    assert reads_of(code).sets == ((frozenset({"a", "b"}), 2),)
    assert sets(set_listed) == ()


def test_names_that_a_function_imports_are_loads_of_their_modules():
    """Relative ones with their dots."""
    (code,) = (c for c in compile(IMPORTS, "", "exec").co_consts if hasattr(c, "co_consts"))
    assert reads_of(code).loads == (
        Load("dumps", (), 2, module="json"),
        Load("loads", (), 2, module="json"),
        Load("pi", (), 3, module="math"),
        Load("near", (), 4, module="."),
        Load("far", (), 5, module=".."),
        Load("thing", (), 6, module="..other.place"),
    )
    assert loads(imports_whole) == ()


def test_code_of_a_module_is_read_alike():
    """There, names are loaded by name."""
    reads = reads_of(compile("\n\nx = a.b\nfor y in c: pass", "", "exec"))
    assert reads == Reads((Load("a", ("b",), 3), Load("c", (), 4, True)), ())


def test_code_without_lines_is_at_its_first_line():
    """As code is that another program has made."""
    code = compile("\n\na\nfrom b import c\nfor x in {1, 2}: pass", "", "exec")
    bare = code.replace(co_linetable=b"", co_firstlineno=7)
    reads = reads_of(bare)
    assert [load.line for load in reads.loads] == [7, 7]
    assert reads.sets == ((frozenset({1, 2}), 7),)


@pytest.mark.parametrize("text", ["", "x", "(a, b)"])
def test_code_that_ends_with_a_load_has_nothing_in_order(text):
    """There is no next instruction to look at."""
    mode = "eval" if text else "exec"
    assert not any(it.in_order for it in reads_of(compile(text, "", mode)).loads)
