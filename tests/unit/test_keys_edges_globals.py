"""Globals that traced code reads, to the letter: which are looked at, by which way, and the whole of each finding."""

import importlib
import sys
import types

import pytest

from graphspec.errors import Problem
from graphspec.keys.module_globals import _absolute, global_problems
from graphspec.keys.watch import Function

torch = pytest.importorskip("torch")

NAME, BESIDE, PACKAGE = "graphspec_test_globals", "graphspec_test_beside", "graphspec_test_relative"

BESIDE_SOURCE = """SCALE = 2
class Limits:
    rows = 4
"""

SOURCE = '''"""A unit with globals."""
import argparse
import enum
import json
import os
import types
import torch
import graphspec_test_beside as beside
from graphspec_test_beside import SCALE, Limits
class Mode(enum.Enum):
    ONE = 1
class Base:
    inherited = 1
class Sizes(Base):
    rows = 4
    def method(self): pass
class Error(ValueError):
    pass
class Slotted:
    __slots__ = ("filled", "empty")
class Plain:
    shared = 7
    none = None
    @property
    def computed(self): return 1
    def method(self): pass
class Called:
    value = 5
    def __call__(self): pass
class Worded(str):
    pass
class Tensor:
    def __init__(self): self.data = len
FACTOR, OTHER, LATE = 3, 4, 5
API_TOKEN = "abc"
MODE = Mode.ONE
NONE = None
ALIKE = True
TENSOR = torch.ones(1)
PARAMETER = torch.nn.Parameter(torch.ones(1))
DEVICE, NO_TENSOR = torch.device("cpu"), Tensor()
FROM_ENVIRONMENT = os.environ.get("NOTHING_OF_THIS_NAME", 1)
FUNCTIONS = {"relu": torch.relu}
NAMES = frozenset(("a", "b"))
NUMBERS = frozenset((1, 2.5))
ALONE = frozenset(("a",))
MIXED = frozenset((1, "a"))
SPACE = types.SimpleNamespace(rows=1)
PARSED = argparse.Namespace(rows=1)
PLAIN = Plain()
PLAIN.own = 8
PLAIN.function = len
PLAIN.nothing = None
SLOTTED = Slotted()
SLOTTED.filled = 9
CALLED = Called()
WORDED = Worded("a")
LIST = [1, 2]
def reads_factor(): return FACTOR
def reads_factor_too():
    return FACTOR + OTHER
def reads_token(): return API_TOKEN
def reads_mode(): return MODE, Mode.ONE, Mode.ONE.value
def reads_none(): return NONE
def reads_alike(): return ALIKE
def reads_tensor(): return TENSOR
def reads_parameter(): return PARAMETER
def reads_no_tensor(): return DEVICE, NO_TENSOR, NO_TENSOR.data
def reads_environment(): return FROM_ENVIRONMENT
def reads_functions(): return FUNCTIONS
def reads_names():
    for x in NAMES: return x
def reads_sets():
    return [x for x in NUMBERS], [x for x in ALONE], sorted(NAMES)
def reads_mixed():
    return list(MIXED)
def reads_literal():
    for x in {"c", "d"}: return x
def reads_space(): return SPACE.rows
def reads_parsed(): return PARSED.rows
def reads_plain(): return PLAIN.own
def reads_shared(): return PLAIN.shared
def reads_harmless():
    return PLAIN.function, PLAIN.nothing, PLAIN.missing, PLAIN.computed, PLAIN.method, PLAIN.none, PLAIN
def reads_filled(): return SLOTTED.filled
def reads_empty(): return SLOTTED.empty
def reads_called(): return CALLED.value
def reads_class(): return Sizes.rows, Sizes.inherited, Sizes.missing, Sizes.method, Sizes, Error.args
def reads_beside(): return beside.SCALE
def reads_beside_class(): return beside.Limits.rows
def reads_imported(): return SCALE
def reads_imported_class(): return Limits.rows
def imports_inside():
    from graphspec_test_beside import SCALE
    return SCALE
def imports_nothing():
    from graphspec_test_nowhere import X
    return X
def reads_modules(): return os.sep, json.decoder, torch.float16, beside.missing, beside
def reads_own(): return __name__, __doc__, __package__, __spec__, __loader__, __builtins__
def reads_file(): return __file__
def reads_builtin(): return len, sorted, NoSuchName
def reads_worded(): return WORDED.x
def reads_list(): return LIST
'''
TELL = "make it a field of the spec, or a constant of the module"
FOLLOWS = "a value that follows from the source of the unit's modules"
HERE = "the value of its source, which the key covers"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The module above, imported anew for each test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    (tmp_path / f"{BESIDE}.py").write_text(BESIDE_SOURCE)
    package = tmp_path / PACKAGE
    (package / "inner").mkdir(parents=True)
    for place in (package, package / "inner"):
        (place / "__init__.py").write_text("HERE = 1\n")
    (package / "inner" / "one.py").write_text(
        "def f():\n    from ..two import A\n    from .. import HERE\n    from . import HERE as H\n"
    )
    (package / "two.py").write_text("A = 5\n")
    importlib.invalidate_caches()
    yield importlib.import_module(NAME)
    for name in [n for n in sys.modules if n.startswith("graphspec_test_")]:
        del sys.modules[name]


def line(text):
    """The line of the source that begins with a text, without the blanks before it."""
    return next(i for i, s in enumerate(SOURCE.splitlines(), 1) if s.strip().startswith(text))


def found(module, *names, modules=(NAME,)):
    functions = [Function(vars(module)[n].__code__, vars(module)) for n in names]
    return global_problems(functions, list(modules), "mlp")


def problem(found, wanted, hint):
    return Problem(where="unit mlp", found=found, wanted=wanted, hint=hint)


def changed(module, name, now, said, at, origin):
    place = f"{module.__file__}:{line(at)}"
    return problem(
        f"module global {NAME}.{name} = {now}, read at {place}, where its source says {said} (line {origin})",
        HERE,
        f"it was changed at run time: {TELL}",
    )


QUIET = (
    "reads_factor reads_factor_too reads_token reads_mode reads_none reads_alike reads_functions reads_sets "
    "reads_harmless reads_no_tensor reads_empty reads_called reads_class imports_nothing reads_modules reads_own reads_builtin reads_list"
).split()


@pytest.mark.parametrize("name", QUIET)
def test_what_follows_from_the_source_is_no_finding(module, name):
    """Constants as they are written, the toolchain's things, functions, classes, and what is not there."""
    assert found(module, name) == []


CHANGES = {
    "reads_factor": ("FACTOR", 4, "4 (an integer)", "3 (an integer)"),
    "reads_none": ("NONE", 1, "1 (an integer)", "nothing (null)"),
    "reads_alike": ("ALIKE", 1, "1 (an integer)", "true (a boolean)"),
    "reads_list": ("LIST", (1, 2), "[1, 2] (a list)", "[1, 2] (a list)"),
    "reads_token": ("API_TOKEN", "xyz", "(hidden)", "(hidden)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_global_is_told_with_both_values(module, monkeypatch, name):
    """Where it is read and where it is assigned; secrets are hidden."""
    what, now, shown, said = CHANGES[name]
    monkeypatch.setattr(module, what, now)
    origin = line("FACTOR, ") if what == "FACTOR" else line(f"{what} =")
    assert found(module, name) == [changed(module, what, shown, said, f"def {name}", origin)]


def test_each_global_is_told_once_at_its_first_read(module, monkeypatch):
    """Others of the same function are told beside it."""
    monkeypatch.setattr(module, "FACTOR", 4)
    monkeypatch.setattr(module, "OTHER", 5)
    origin = line("FACTOR, ")
    three, four, five = (f"{n} (an integer)" for n in (3, 4, 5))
    assert found(module, "reads_factor", "reads_factor_too") == [
        changed(module, "FACTOR", four, three, "def reads_factor()", origin),
        changed(module, "OTHER", five, four, "return FACTOR + OTHER", origin),
    ]


def test_functions_in_a_constant_are_compared_one_by_one(module, monkeypatch):
    """A container of functions has no encoding."""
    monkeypatch.setattr(module, "FUNCTIONS", {"relu": torch.tanh})
    (only,) = found(module, "reads_functions")
    assert only.found.startswith(f"module global {NAME}.FUNCTIONS = ")
    monkeypatch.setattr(module, "FUNCTIONS", 1)
    (only,) = found(module, "reads_functions")
    assert only.found.startswith(f"module global {NAME}.FUNCTIONS = 1 (an integer), read at ")


def test_a_changed_class_attribute_is_told(module, monkeypatch):
    """Under the class that holds it."""
    monkeypatch.setattr(module.Sizes, "rows", 5)
    monkeypatch.setattr(module.Base, "inherited", 2)
    place = f"{module.__file__}:{line('def reads_class')}"
    assert [p.found for p in found(module, "reads_class")] == [
        f"module global {NAME}.{name} = {now} (an integer), read at {place}, where its source says {said} (an integer) "
        f"(line {line(text)})"
        for name, now, said, text in (
            ("Sizes.rows", 5, 4, "rows = 4"),
            ("Base.inherited", 2, 1, "inherited = 1"),
        )
    ]


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("reads_tensor", "TENSOR", "which is no constant expression (line {})"),
        ("reads_parameter", "PARAMETER", "which is no constant expression (line {})"),
        ("reads_environment", "FROM_ENVIRONMENT", "which is no constant expression (line {})"),
        ("reads_file", "__file__", "which its source does not assign"),
    ],
)
def test_what_does_not_follow_from_the_source_is_told_with_why(module, name, what, why):
    """Tensors, variables and the place of the file."""
    place = f"{module.__file__}:{line(f'def {name}')}"
    number = line(f"{what} =") if "{}" in why else 0
    said = f"module global {NAME}.{what}, {why.format(number)}, read at {place}"
    assert found(module, name) == [problem(said, FOLLOWS, TELL)]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("reads_space", "SPACE.rows"),
        ("reads_parsed", "PARSED.rows"),
        ("reads_plain", "PLAIN.own"),
        ("reads_shared", "PLAIN.shared"),
        ("reads_filled", "SLOTTED.filled"),
    ],
)
def test_an_attribute_of_an_object_is_told(module, name, what):
    """Whether the instance, its slot or its class holds it."""
    place = f"{module.__file__}:{line(f'def {name}')}"
    assert found(module, name) == [
        problem(
            f"module global {NAME}.{what}, an attribute of an object that lives beside the spec, read at {place}",
            FOLLOWS,
            TELL,
        )
    ]


def order(what, place):
    return problem(
        f"{what} is iterated at {place}",
        "an order that is the same in each process, since the graph may follow it",
        "sort it, or make it a tuple: the order of texts in a set depends on PYTHONHASHSEED",
    )


def test_the_order_of_a_set_is_told(module):
    """Of a global and of one that is written in place; numbers, one member alone and sorting have one order."""
    place = f"{module.__file__}:"
    assert found(module, "reads_names", "reads_sets", "reads_mixed", "reads_literal") == [
        order(f"the set {NAME}.NAMES", f"{place}{line('for x in NAMES')}"),
        order(f"the set {NAME}.MIXED", f"{place}{line('return list(MIXED)')}"),
        order("a set", place + str(line('for x in {"c", "d"}'))),
    ]


UNDECLARED = {
    "reads_beside": "SCALE",
    "reads_beside_class": "Limits.rows",
    "imports_inside": "SCALE",
    "reads_imported_class": "Limits.rows",
}


@pytest.mark.parametrize("name", [*UNDECLARED, "reads_imported"])
def test_a_constant_of_a_module_that_is_not_declared_is_told(module, monkeypatch, name):
    """Under the module that is read; declared, it is compared with its source."""
    what = f"{BESIDE}.{UNDECLARED[name]}" if name in UNDECLARED else f"{NAME}.SCALE"
    at = "from graphspec_test_beside import SCALE" if name == "imports_inside" else f"def {name}("
    lines = [i for i, s in enumerate(SOURCE.splitlines(), 1) if s.strip().startswith(at)]
    said = f"module global {what}, which comes from a module that is not declared, read at {module.__file__}:{lines[-1]}"
    assert found(module, name) == [
        problem(
            said,
            f"a value from its declared modules ('{NAME}',) or the toolchain",
            "add the module to the unit's `modules`, so that a change of its content changes the key",
        )
    ]
    assert found(module, name, modules=(NAME, BESIDE)) == []
    beside = sys.modules[BESIDE]
    for holder, attribute in ((beside, "SCALE"), (module, "SCALE"), (beside.Limits, "rows")):
        monkeypatch.setattr(holder, attribute, 9)
    (only,) = found(module, name, modules=(NAME, BESIDE))
    assert only.found.startswith(f"module global {what} = 9 (an integer), read at ")


def test_a_module_without_a_file_cannot_be_declared(module, monkeypatch):
    """Its values come from nowhere that a digest could cover."""
    made = types.ModuleType("graphspec_test_made")
    made.SCALE = 2
    monkeypatch.setattr(module, "beside", made)
    (only,) = found(module, "reads_beside", modules=(NAME, BESIDE))
    said = (
        "module global graphspec_test_made.SCALE, which comes from a module that is not declared, "
    )
    assert only.found.startswith(said)


def test_a_module_is_declared_by_its_file_too(module, tmp_path):
    """Under another name for the same file it is the same code."""
    (tmp_path / "graphspec_test_alias.py").symlink_to(tmp_path / f"{BESIDE}.py")
    importlib.invalidate_caches()
    assert found(module, "reads_beside", modules=(NAME, "graphspec_test_alias")) == []


def test_names_that_are_imported_inside_are_found_by_their_package(module):
    """Relative to the package of the function's module."""
    one = importlib.import_module(f"{PACKAGE}.inner.one")
    for name in (f"{PACKAGE}.two", f"{PACKAGE}.inner"):
        vars(importlib.import_module(name)).update(A=6, HERE=7)
    vars(sys.modules[PACKAGE]).update(HERE=8)
    modules = [f"{PACKAGE}.inner.one", f"{PACKAGE}.two", PACKAGE, f"{PACKAGE}.inner"]
    told = global_problems([Function(one.f.__code__, vars(one))], modules, "mlp")
    assert [p.found.split(", read")[0] for p in told] == [
        f"module global {PACKAGE}.two.A = 6 (an integer)",
        f"module global {PACKAGE}.HERE = 8 (an integer)",
        f"module global {PACKAGE}.inner.HERE = 7 (an integer)",
    ]


@pytest.mark.parametrize(
    ("name", "package", "absolute"),
    [
        ("a.b", "p.q", "a.b"),
        (".", "p.q", "p.q"),
        (".a", "p.q", "p.q.a"),
        ("..a.b", "p.q", "p.a.b"),
        ("..", "p.q", "p"),
        (".a", None, ".a"),
        (".a", "", ".a"),
    ],
)
def test_relative_names_are_counted_from_the_package(name, package, absolute):
    """One dot is the package itself."""
    assert _absolute(name, {"__package__": package}) == absolute


def test_code_of_the_toolchain_and_code_without_a_file_is_not_looked_at(module, monkeypatch):
    """By the name of the module that it runs in, or because it was made from a text."""
    monkeypatch.setattr(module, "FACTOR", 4)
    code = module.reads_factor.__code__
    inside = {**vars(module), "__name__": "torch.fx"}
    assert global_problems([Function(code, inside)], [NAME], "mlp") == []
    made = code.replace(co_filename="<string>")
    assert global_problems([Function(made, vars(module))], [NAME], "mlp") == []
    assert len(global_problems([Function(code, vars(module))], [NAME], "mlp")) == 1


def test_subclasses_of_plain_values_are_no_values(module):
    """A text of another class has no encoding; what is asked of it is an attribute that it lacks."""
    assert found(module, "reads_worded") == []
