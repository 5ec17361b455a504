"""Module globals that are configuration: what a trace reads of them is what the digested source says, or it fails."""

import inspect

import pytest
import torch

from graphspec.cache.compiling.trace import trace
from graphspec.cache.units import CompileUnit, TensorInput
from graphspec.errors import UndeclaredFactorError
from graphspec.keys.constants import NotConstantError, Sources
from graphspec.keys.loads import reads_of
from graphspec.keys.scope import Scope
from graphspec.text import show
from support import settings, switches

OTHER = ("support.settings",)


def unit(build, *modules, **more):
    return CompileUnit(
        name="probe",
        scope=Scope(()),
        modules=modules,
        build=build,
        inputs=(TensorInput(name="x", shape=(2, 4), dtype="float32"),),
        **more,
    )


def problem(spec, build, *modules):
    """The one problem of a trace that must fail."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(unit(build, *modules), spec, "cpu")
    (found,) = caught.value.problems
    assert found.where == "unit probe"
    return found


def line_in(function, text):
    """File and line of the code in a function that holds some text."""
    lines, first = inspect.getsourcelines(function)
    return f"switches.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_constants_of_every_kind_pass(tiny_spec):
    """Numbers, texts, containers, arithmetic, dtypes, limits of dtypes, enum members, class attributes: no alarm."""
    trace(unit(switches.constants), tiny_spec, "cpu")


CHANGES = {
    "a number": (switches.scaled, "FACTOR", 4),
    "another type": (switches.alike, "ALIKE", 1),
    "none to a function": (switches.later, "LATER", torch.relu),
    "a dtype": (switches.constants, "DTYPE", torch.float16),
    "a member": (switches.constants, "MODE", switches.Mode.PLAIN),
    "an entry": (switches.constants, "BY_NAME", {"a": 2.0, "b": [2.0, None]}),
    "a function in a mapping": (switches.constants, "ACTIVATIONS", {"relu": torch.tanh}),
}


@pytest.mark.parametrize(("build", "name", "now"), CHANGES.values(), ids=CHANGES)
def test_a_switch_that_was_changed_at_run_time_fails(tiny_spec, monkeypatch, build, name, now):
    """The error names module and global, its value now, its value in the source, and the line that reads it."""
    usual = getattr(switches, name)
    monkeypatch.setattr(switches, name, now)
    found = problem(tiny_spec, build).found
    value, said = found.split("where its source says")
    assert f"support.switches.{name} = {show(now)}" in value
    assert "switches.py:" in value
    assert show(usual) in said
    assert "(line " in said


def test_the_line_that_reads_is_named(tiny_spec, monkeypatch):
    """The place is that of the read, not of the function."""
    monkeypatch.setattr(switches, "FACTOR", 4)
    assert line_in(switches.scaled, "FACTOR\n") in problem(tiny_spec, switches.scaled).found


def test_a_changed_class_attribute_fails(tiny_spec, monkeypatch):
    """Settings that are attributes of a class are compared with the class's source."""
    monkeypatch.setattr(switches.Sizes, "rows", 5)
    assert "support.switches.Sizes.rows = 5" in problem(tiny_spec, switches.own_class).found


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (switches.environment_at_import, "FROM_ENVIRONMENT"),
        (switches.conditional, "CONDITIONAL"),
        (switches.twice, "TWICE"),
        (switches.tensor, "TENSOR"),
        (switches.own_file, "__file__"),
    ],
)
def test_a_global_that_does_not_follow_from_the_source_fails(tiny_spec, build, name):
    """Read from the environment, under a condition, assigned twice, a tensor, a path: no key covers those."""
    found = problem(tiny_spec, build)
    assert f"module global support.switches.{name}, which" in found.found
    assert "follows from the source" in found.wanted
    assert "field of the spec" in found.hint


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (switches.imported, "support.switches.IMPORTED_SCALE"),
        (switches.through_module, "support.settings.SCALE"),
        (switches.through_class, "support.settings.Limits.rows"),
        (switches.through_function, "support.settings.SCALE"),
    ],
)
def test_a_constant_of_an_undeclared_module_fails(tiny_spec, build, name):
    """No function of that module runs, so the watch over files cannot see it. Declared, it traces."""
    found = problem(tiny_spec, build)
    assert name in found.found
    assert "not declared" in found.found
    assert "`modules`" in found.hint
    trace(unit(build, *OTHER), tiny_spec, "cpu")


@pytest.mark.parametrize(
    "build", [switches.imported, switches.through_module, switches.through_function]
)
def test_a_changed_constant_of_another_module_fails(tiny_spec, monkeypatch, build):
    """Whichever way a constant is reached, it is compared with the source that assigns it."""
    for module, name in ((settings, "SCALE"), (switches, "IMPORTED_SCALE")):
        monkeypatch.setattr(module, name, 5.0)
    found = problem(tiny_spec, build, *OTHER).found
    assert "= 5.0" in found
    assert "source says 2.0" in found


def test_an_attribute_of_a_global_object_fails(tiny_spec):
    """Settings in an object beside the spec are in no source and in no key."""
    found = problem(tiny_spec, switches.through_object, *OTHER).found
    assert "support.settings.FLAGS.fast" in found


def test_the_value_of_a_secret_is_not_shown(tiny_spec, monkeypatch):
    """A changed global whose name is that of a credential is named without its values."""
    monkeypatch.setattr(switches, "FACTOR", 4)
    monkeypatch.setattr("graphspec.keys.module_globals.is_secret", lambda name: name == "FACTOR")
    found = problem(tiny_spec, switches.scaled).found
    assert "FACTOR = (hidden)" in found
    assert "says (hidden)" in found


@pytest.mark.parametrize("build", [switches.loop_over_set, switches.list_of_set])
def test_a_loop_over_a_set_of_texts_fails(tiny_spec, build):
    """Its order differs from process to process, so the graph would."""
    found = problem(tiny_spec, build)
    assert "is iterated at" in found.found
    assert "PYTHONHASHSEED" in found.hint


def source(tmp_path, monkeypatch, text):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "constants_under_test.py").write_text(text)
    return Sources()


def covered(module):
    return True


CONSTANT = {
    "-1": -1,
    "not 0": True,
    "(1, 'a', b'b', None, ...)[:1]": None,
    "(1, 2)[1]": 2,
    "{'a': [1, {2}]}": {"a": [1, {2}]},
    "2 ** 3 % 5 | 8": 11,
    "frozenset(('a', 'b'))": frozenset(("a", "b")),
    "dict()": {},
    "tuple(range(3))": (0, 1, 2),
    "max(1, 2)": 2,
    "'b a'.split()": ["b", "a"],
    "'A'.lower().upper()": None,
    "sorted(frozenset(('b', 'a')))": ["a", "b"],
    "tuple({'a', 'b'})": None,
    "[*(1, 2)]": None,
    "{**{}}": None,
    "[x for x in (1, 2)]": None,
    "f'{1}'": None,
    "os.environ.get('A')": None,
    "open('x')": None,
    "lambda: 1": None,
    "1 / 0": None,
    "missing": None,
    "A": None,
    "int('4', base=8)": None,
}


@pytest.mark.parametrize(("text", "value"), CONSTANT.items(), ids=CONSTANT)
def test_what_is_a_constant(tmp_path, monkeypatch, text, value):
    """An expression that follows from the source alone has a value; None stands for those that do not."""
    sources = source(tmp_path, monkeypatch, f"A = {text}\n")
    if value is None:
        with pytest.raises(NotConstantError):
            sources.constant("constants_under_test", "A", covered)
    else:
        found = sources.constant("constants_under_test", "A", covered)
        assert found == ("line 1", value)
        assert type(found[1]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "if 1:\n    A = 1\n",
        "for A in (1,):\n    pass\n",
        "try:\n    A = 1\nexcept E:\n    pass\n",
        "try:\n    pass\nexcept E:\n    A = 1\n",
        "match 1:\n    case 1:\n        A = 1\n",
        "A = 1\nA += 1\n",
        "A = 1\ndel A\n",
        "A = 1\ndef f():\n    global A\n",
        "A: int\n",
        "def A():\n    pass\n",
        "from os import *\n",
        "A, *B = 1, 2\n",
        "with x as A:\n    pass\n",
        "(A := 1)\n",
        "class C:\n    A = 1\n",
        "A =\n",
    ],
)
def test_an_assignment_that_is_not_one_plain_statement_is_none(tmp_path, monkeypatch, text):
    """Conditions, loops, second assignments, functions that assign: the source does not say which value it is."""
    sources = source(tmp_path, monkeypatch, text)
    with pytest.raises(NotConstantError):
        sources.constant("constants_under_test", "A", covered)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A: int = 1\n", 1),
        ("A = B = 1\n", 1),
        ("B, A = 2, 1\n", 1),
        ("B = 1\nA = B\n", 1),
        ("if x:\n    B = 1\nA = 1\n", 1),
        ("def f():\n    A = 2\nA = 1\n", 1),
    ],
)
def test_assignments_that_are_one_plain_statement(tmp_path, monkeypatch, text, value):
    """Annotations, chains, pairs and names of constants; what a function calls by that name does not matter."""
    sources = source(tmp_path, monkeypatch, text)
    assert sources.constant("constants_under_test", "A", covered)[1] == value


def test_attributes_are_taken_with_their_global():
    """The instructions give each global with the chain of attributes that follows it."""

    def probe():
        return switches.Sizes.rows + len(settings.double.__name__)

    names = [(load.name, load.attributes) for load in reads_of(probe.__code__).loads]
    assert ("switches", ("Sizes", "rows")) in names
    assert ("settings", ("double", "__name__")) in names


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("for x in S: pass", True),
        ("[x for x in S]", True),
        ("list(S)", True),
        ("tuple(S)", True),
        ("','.join(S)", True),
        ("[*S]", True),
        ("a, b = S", True),
        ("sorted(S)", False),
        ("1 in S", False),
        ("len(S)", False),
        ("S | S", False),
    ],
)
def test_which_uses_of_a_set_depend_on_its_order(text, ordered):
    """Going through a set one by one does; membership, size, sorting and set operations do not."""
    loads = reads_of(compile(text, "", "exec")).loads
    assert any(load.name == "S" and load.in_order for load in loads) is ordered
