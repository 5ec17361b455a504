"""Constants by their source: what each kind of expression and statement gives, and the words of each refusal."""

import ast
import importlib.util
import math
import sys

import pytest

from graphspec.keys.bindings import Binding, bindings
from graphspec.keys.constants import NotConstantError, Sources

torch = pytest.importorskip("torch")

OTHER = '''"""Another module."""
SCALE = 3
PAIR = (1, 2)


class Limits:
    rows = 4
'''

SOURCE = '''"""A module of constants."""
import enum
import math
import os
import torch
import torch as th
from math import pi
from graphspec_test_other import SCALE, PAIR as BOTH
from graphspec_test_other import missing
from .graphspec_test_other import SCALE as NEAR
from ..graphspec_test_other import SCALE as FAR
from math import nothing


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


class Sizes:
    rows = 4

    class Inner:
        deep = rows = 5


if os.sep:

    class Sometimes:
        rows = 1


def function():
    global SET_INSIDE
    SET_INSIDE = 1


INT, FLOAT, TEXT, NONE = 1, 1.5, "a", None
[FIRST, SECOND] = (10, 20)
SAME = ALSO = 7
NOTED: int = 8
DECLARED: int
TUPLE = (1, (2, 3))
LIST = [1, 2]
SET = {1, 2}
DICT = {"a": 1, "b": [2]}
STARRED = {**DICT}
ADD, SUB, MUL, DIV, FLOOR, MOD, POWER = 7 + 2, 7 - 2, 7 * 2, 7 / 2, 7 // 2, 7 % 4, 7**2
LEFT, RIGHT, OR, AND, XOR = 6 << 1, 6 >> 1, 6 | 1, 6 & 3, 6 ^ 3
PLUS, MINUS, NOT, INVERT = +INT, -INT, not INT, ~INT
ITEM, NESTED_ITEM, LETTER = LIST[1], DICT["b"][0], "xyz"[2]
SLICE = LIST[0:1]
NAMED = INT
LOOSE = th.float16
DTYPE, PI, MEMBER = torch.float16, math.pi, Mode.TWO
LOWEST, BITS = torch.finfo(torch.float16).min, torch.iinfo(torch.int8).bits
SQUARE = math.sqrt(16)
WORDS, BYTES, LOWER, UPPER, STRIP = "a b".split(), "a".encode(), "A".lower(), "a".upper(), " a ".strip()
SHAPED = (frozenset((1, 2)), set([1]), dict(), tuple([1]), list((1,)), sorted({2, 1}), list(range(3)))
COUNTED = (int("2"), float(2), str(2), bool(2), len("ab"), min(2, 1), max(1, 2))
EMPTY = (tuple(), list())
ORDER = tuple({1, 2})
ORDER_TOO = list(frozenset((1, 2)))
ORDER_OF_DICT = dict({(1, 2)})
ORDER_OF_TEXT = str({1, 2})
ORDER_INSIDE = str(({"a": [{1}]},))
TOLD = str(({"a": [1]},))
ONE_OF, SET_APART = {"a", "b"}
SHORT, SHORTER, SHORTEST = (1, 2)
LONG, LONGER = (1, 2, 3)
SAME_SIZE, (A_PAIR, OF_NAMES) = (1, 2)
[LISTED, UNLISTED] = [1, 2]
LEFT_NAME = (RIGHT_NAME, _) = (1, 2)
CALLED = function()
CALLED_WITH = sorted((2, 1), reverse=True)
REPLACED = "a".replace("a", "b")
ATTRIBUTE = Sizes.rows
OF_OS = os.sep
BROKEN = 1 / 0
WRONG = {}["a"]
LAMBDA = lambda: 1
UNKNOWN = NOWHERE
TWICE = 1
TWICE = 2
AUGMENTED = 1
AUGMENTED += 1
if os.sep:
    SOMETIMES = 1
else:
    OTHERWISE = 2
for LOOPED in (1, 2):
    pass
with open(os.devnull) as OPENED:
    IN_WITH = 1
try:
    TRIED = 1
except OSError:
    HANDLED = 2
finally:
    AT_LAST = 3
(HOLDER := 5)
A.b = 3
X, (Y, Z) = 1, (2, 3)
UNPACKED, *REST = (1, 2, 3)
ENUM_VALUE = Mode.TWO.value
'''

VALUES = {
    "INT": 1,
    "FLOAT": 1.5,
    "TEXT": "a",
    "NONE": None,
    "FIRST": 10,
    "SECOND": 20,
    "SAME": 7,
    "ALSO": 7,
    "NOTED": 8,
    "TUPLE": (1, (2, 3)),
    "LIST": [1, 2],
    "SET": {1, 2},
    "DICT": {"a": 1, "b": [2]},
    "ADD": 9,
    "SUB": 5,
    "MUL": 14,
    "DIV": 3.5,
    "FLOOR": 3,
    "MOD": 3,
    "POWER": 49,
    "LEFT": 12,
    "RIGHT": 3,
    "OR": 7,
    "AND": 2,
    "XOR": 5,
    "PLUS": 1,
    "MINUS": -1,
    "NOT": False,
    "INVERT": -2,
    "ITEM": 2,
    "NESTED_ITEM": 2,
    "LETTER": "z",
    "NAMED": 1,
    "LOOSE": torch.float16,
    "DTYPE": torch.float16,
    "PI": math.pi,
    "LOWEST": torch.finfo(torch.float16).min,
    "BITS": 8,
    "SQUARE": 4.0,
    "WORDS": ["a", "b"],
    "BYTES": b"a",
    "LOWER": "a",
    "UPPER": "A",
    "STRIP": "a",
    "SHAPED": (frozenset((1, 2)), {1}, {}, (1,), [1], [1, 2], [0, 1, 2]),
    "COUNTED": (2, 2.0, "2", True, 2, 1, 2),
    "EMPTY": ((), []),
    "TOLD": "({'a': [1]},)",
    "LISTED": 1,
    "UNLISTED": 2,
    "LEFT_NAME": (1, 2),
    "RIGHT_NAME": 1,
    "Sizes.rows": 4,
    "Sizes.Inner.deep": 5,
    "Sizes.Inner.rows": 5,
    "Mode.ONE": 1,
}
NO_EXPRESSION = "which is no constant expression (line {})"
CONDITION = "which is assigned under a condition or in a function (line {})"
NO_ASSIGNMENT = "which is no constant assignment (line {})"
REFUSED = {
    "NOTHING": "which its source does not assign",
    "DECLARED": "which its source does not assign",
    "Sizes.nothing": "which its source does not assign",
    "function.x": "which belongs to a class that its source does not define as such",
    "INT.x": "which belongs to a class that its source does not define as such",
    "Sometimes.rows": "which belongs to a class that its source does not define as such",
    "STARRED": NO_EXPRESSION,
    "SLICE": NO_EXPRESSION,
    "CALLED": NO_EXPRESSION,
    "CALLED_WITH": NO_EXPRESSION,
    "REPLACED": NO_EXPRESSION,
    "ATTRIBUTE": NO_EXPRESSION,
    "OF_OS": NO_EXPRESSION,
    "LAMBDA": NO_EXPRESSION,
    "ENUM_VALUE": NO_EXPRESSION,
    "ORDER": "which depends on the order of a set (line {})",
    "ORDER_TOO": "which depends on the order of a set (line {})",
    "ORDER_OF_TEXT": "which depends on the order of a set (line {})",
    "ORDER_INSIDE": "which depends on the order of a set (line {})",
    "ORDER_OF_DICT": "which depends on the order of a set (line {})",
    "ONE_OF": NO_ASSIGNMENT,
    "SHORT": NO_ASSIGNMENT,
    "LONG": NO_ASSIGNMENT,
    "SAME_SIZE": NO_ASSIGNMENT,
    "BROKEN": "whose source fails with ZeroDivisionError",
    "WRONG": "whose source fails with KeyError",
    "UNKNOWN": "which its source does not assign",
    "TWICE": "which its source assigns more than once (lines {}, {})",
    "AUGMENTED": "which its source assigns more than once (lines {}, {})",
    "SOMETIMES": CONDITION,
    "OTHERWISE": CONDITION,
    "LOOPED": CONDITION,
    "OPENED": CONDITION,
    "IN_WITH": CONDITION,
    "TRIED": CONDITION,
    "HANDLED": CONDITION,
    "AT_LAST": CONDITION,
    "SET_INSIDE": CONDITION,
    "Sometimes": CONDITION,
    "HOLDER": NO_ASSIGNMENT,
    "Sizes": NO_ASSIGNMENT,
    "function": NO_ASSIGNMENT,
    "math": NO_ASSIGNMENT,
    "th": NO_ASSIGNMENT,
    "X": NO_ASSIGNMENT,
    "REST": NO_ASSIGNMENT,
    "missing": "which its source does not assign",
    "FAR": "which comes from outside its package",
    "NEAR": "which comes from outside its package",
}
PLACES = {
    "LOOPED": "for LOOPED",
    "OPENED": "with open",
    "SET_INSIDE": "global SET_INSIDE",
    "Sometimes": "class Sometimes",
    "Sizes": "class Sizes",
    "function": "def function",
    "math": "import math",
    "th": "import torch as th",
    "X": "X, (Y",
    "REST": "UNPACKED, ",
    "HOLDER": "(HOLDER",
    "ONE_OF": "ONE_OF,",
    "SHORT": "SHORT,",
    "LONG": "LONG,",
    "SAME_SIZE": "SAME_SIZE,",
    "NOTED": "NOTED:",
}
NAME, PACKAGE = "graphspec_test_constants", "graphspec_test_package"


def lines_of(name):
    """The lines of the source at which a name is bound."""
    begin = PLACES.get(name, f"{name} ")
    return [i for i, line in enumerate(SOURCE.splitlines(), 1) if line.strip().startswith(begin)]


class Holder:
    """Not an enum and not a module."""

    ONE = 1


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The modules above in files. The first is not imported: it holds what its names would be."""
    import enum
    import os
    import types

    folder = tmp_path_factory.mktemp("constants")
    (folder / f"{NAME}.py").write_text(SOURCE)
    (folder / "graphspec_test_other.py").write_text(OTHER)
    package = folder / PACKAGE
    (package / "inner").mkdir(parents=True)
    for place in (package, package / "inner"):
        (place / "__init__.py").write_text("HERE = 1\nfrom .two import A as OWN\n")
        (place / "two.py").write_text("A = 5\n" if place == package else "A = 6\n")
    (package / "one.py").write_text(
        "from .two import A\nfrom . import HERE\nfrom math import e as E\n"
    )
    (package / "inner" / "three.py").write_text("from ..two import A\nfrom ... import B\n")
    (folder / "graphspec_test_latin.py").write_bytes(
        "# coding: latin-1\nA = 'é'\n".encode("latin-1")
    )
    (folder / "graphspec_test_broken.py").write_text("A = = 1\n")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    made = types.ModuleType(NAME)
    made.__spec__ = importlib.util.spec_from_file_location(NAME, str(folder / f"{NAME}.py"))
    mode = enum.Enum("Mode", ["ONE", "TWO"])
    vars(made).update(torch=torch, th=torch, math=math, os=os, Mode=mode, Sizes=Holder)
    sys.modules[NAME] = made
    yield Sources()
    sys.path.remove(str(folder))
    for name in [n for n in sys.modules if n.startswith("graphspec_test_")]:
        del sys.modules[name]


def everywhere(module):
    return True


@pytest.mark.parametrize("name", VALUES)
def test_a_constant_has_the_value_that_python_gives_it(sources, name):
    """With its type, and the line that says so."""
    place, value = sources.constant(NAME, name, everywhere)
    assert (value, type(value)) == (VALUES[name], type(VALUES[name]))
    assert place.startswith("line ")
    assert sources.is_constant(NAME, name)


def test_the_line_of_a_constant_is_that_of_its_statement(sources):
    """In the file, from one on."""
    for name in ("NOTED", "TUPLE", "NAMED"):
        assert [f"line {n}" for n in lines_of(name)] == [
            sources.constant(NAME, name, everywhere)[0]
        ]


def test_members_of_enums_are_constants(sources):
    """The live member is the value."""
    _, value = sources.constant(NAME, "MEMBER", everywhere)
    assert value is sys.modules[NAME].Mode.TWO


def refusal_of(sources, module, name, covers=everywhere):
    with pytest.raises(NotConstantError) as caught:
        sources.constant(module, name, covers)
    assert not sources.is_constant(module, name) or covers is not everywhere
    return str(caught.value), caught.value.undeclared


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_follow_from_the_source_says_why(sources, name):
    """One reason each, with the line where there is one."""
    assert refusal_of(sources, NAME, name) == (REFUSED[name].format(*lines_of(name)), False)


def test_constants_of_other_modules_are_followed(sources):
    """By their names there, relative ones too; those of the toolchain are what they are now."""
    assert sources.constant(NAME, "SCALE", everywhere) == ("line 2", 3)
    assert sources.constant(NAME, "BOTH", everywhere) == ("line 3", (1, 2))
    assert sources.constant(NAME, "pi", everywhere) == ("math", math.pi)
    assert sources.constant(NAME, "nothing", everywhere) == ("math", None)
    assert sources.constant(f"{PACKAGE}.one", "A", everywhere) == ("line 1", 5)
    assert sources.constant(f"{PACKAGE}.one", "HERE", everywhere) == ("line 1", 1)
    assert sources.constant(f"{PACKAGE}.one", "E", everywhere) == ("math", math.e)
    assert sources.constant(f"{PACKAGE}.inner.three", "A", everywhere) == ("line 1", 5)
    assert sources.constant(f"{PACKAGE}.inner", "OWN", everywhere) == ("line 1", 6)
    assert sources.constant("graphspec_test_latin", "A", everywhere) == ("line 2", "é")
    why = "which comes from outside its package"
    assert refusal_of(sources, f"{PACKAGE}.inner.three", "B") == (why, False)


def test_a_module_that_is_not_declared_is_refused_on_the_way(sources):
    """At the begin, and where an import leads."""
    why = ("which comes from a module that is not declared", True)
    assert refusal_of(sources, NAME, "INT", lambda module: False) == why
    assert refusal_of(sources, NAME, "SCALE", NAME.__eq__) == why
    assert sources.constant(NAME, "INT", NAME.__eq__) == (f"line {lines_of('INT,')[0]}", 1)


@pytest.mark.parametrize("module", ["graphspec_test_nowhere", "sys", "graphspec_test_broken"])
def test_a_module_without_source_has_no_constants(sources, module):
    """Missing, built in, or no Python."""
    assert refusal_of(sources, module, "A") == ("which has no source that can be read", False)


STATEMENTS = {
    "a = 1": [("a", True)],
    "a = b = c.d = 1": [("a", True), ("b", True)],
    "a, (b, *c) = 1": [("a", True), ("b", True), ("c", True)],
    "a: int = 1": [("a", True)],
    "a: int": [],
    "a += b": [("a", True)],
    "a[b] = c": [],
    "del a": [("a", True)],
    "f(a := 1)": [("a", True)],
    "import a.b.c": [("a", True)],
    "import a.b as c, d": [("c", True), ("d", True)],
    "from a import b as c, d": [("c", True), ("d", True)],
    "def f(a):\n b = 1": [("f", True)],
    "async def f():\n global a, b": [("f", True), ("a", False), ("b", False)],
    "def f():\n def g():\n  global a": [("f", True), ("a", False)],
    "class A:\n b = 1\n def f(self):\n  global c": [("A", True)],
    "if (t := 1):\n a = 1\nelif x:\n b = 1\nelse:\n c = 1": [
        ("t", False),
        ("a", False),
        ("b", False),
        ("c", False),
    ],
    "for a in b:\n c = 1\nelse:\n d = 1": [("a", False), ("c", False), ("d", False)],
    "while a:\n b = 1": [("b", False)],
    "with a as b:\n c = 1": [("b", False), ("c", False)],
    "try:\n a = 1\nexcept E:\n b = 1\nelse:\n c = 1\nfinally:\n d = 1": [
        ("a", False),
        ("c", False),
        ("d", False),
        ("b", False),
    ],
    "match x:\n case 1:\n  a = 1\n case 2:\n  b = 1": [("a", False), ("b", False)],
    "if x:\n def f():\n  global a\n class B:\n  pass\n import c": [
        ("f", False),
        ("a", False),
        ("B", False),
        ("c", False),
    ],
    "if x:\n if y:\n  a = 1": [("a", False)],
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_every_statement_that_binds_a_name_is_found(text):
    """In order, and whether it always runs."""
    found = [(name, binding.always) for name, binding in bindings(ast.parse(text).body)]
    assert found == STATEMENTS[text]


def test_a_binding_is_the_statement_itself():
    """The innermost that binds; nothing is certain below what is not."""
    (outer,) = ast.parse("if x:\n a = 1\n").body
    assert list(bindings([outer])) == [("a", Binding(outer.body[0], False))]
    assert list(bindings(outer.body)) == [("a", Binding(outer.body[0], True))]
    (function,) = ast.parse("def f():\n global a").body
    assert list(bindings([function])) == [
        ("f", Binding(function, True)),
        ("a", Binding(function.body[0], False)),
    ]
    assert list(bindings(outer.body, False)) == [("a", Binding(outer.body[0], False))]
