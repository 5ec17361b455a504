"""Surprises of compile caches: what changes a graph and moves no key. Each is shown first, then what catches it.

A key that hashes a config, and nothing else, reports none of them: the wrong graph loads. Those that also run without any
error come first; the others tend to end in a shape or size check.

| rank | surprise                                                  | caught here by               | instead                        |
|------|-----------------------------------------------------------|------------------------------|--------------------------------|
| 1    | a field that a graph depends on is declared unkeyed       | the view that units read     | declare it keyed               |
| 2    | a switch in a module global is changed at run time        | the watch over globals       | a field, or a true constant    |
| 3    | a unit reads an environment variable                      | the watch over the trace     | a field, or `environment`      |
| 4    | a function two calls down is edited                       | the watch, then the digest   | list its module in `modules`   |
| 5    | a constant is edited in a module of which nothing runs    | the watch over globals       | list its module in `modules`   |
| 6    | a library of custom operators is built anew               | the operators of the graph   | list it in `libraries`         |
| 7    | a file is edited after the process has imported it        | its code against the digest  | start the process again        |
| 8    | torch's default dtype is another in this process          | the key                      | nothing to do                  |
| 9    | a loop makes units whose build functions hold a number    | the key                      | nothing to do                  |
| 10   | a set of texts is iterated: another order in each process | the watch; `graphspec audit` | sort it, or write a tuple      |

All of it happens on a CPU and without compiling anything.
"""

import functools
import importlib
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from graphspec.cache.compiling.fingerprint import graph_lines
from graphspec.cache.compiling.torch_state import set_torch_state
from graphspec.cache.compiling.trace import trace
from graphspec.cache.load import keyed_units
from graphspec.cache.native import NativeLibrary
from graphspec.cache.units import CompileUnit, TensorInput
from graphspec.errors import UndeclaredFactorError
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.keys.factors import compute_hash
from graphspec.keys.scope import RecordingView, Scope
from support import operator_units, settings, switches


def unit(build, *modules, **more):
    return CompileUnit(
        name="planted",
        scope=Scope(()),
        modules=modules,
        build=build,
        inputs=(TensorInput(name="x", shape=(2, 4), dtype="float32"),),
        **more,
    )


def key(spec, planted):
    return keyed_units([planted], spec)[0].key


def graph(build, spec=None):
    """The graph as a cache without a watch would trace it."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return build(spec)(x)

    return graph_lines(torch.export.export(Module(), (torch.ones(2, 4),), strict=False))


def refused(spec, planted):
    """What the watched trace says against a unit."""
    with pytest.raises(UndeclaredFactorError) as caught:
        trace(planted, spec, "cpu")
    return str(caught.value)


@config_class
class Planted:
    """A section with a field whose declaration is wrong, and one whose declaration is right."""

    depth: int = unkeyed(default=2, doc="Number of steps.", reason="shown only")
    width: int = keyed(Stage.COMPILE, default=2, doc="Width of a step.")


def deep(spec):
    return lambda x: x * spec.depth


def wide(spec):
    return lambda x: x * spec.width


def test_an_unkeyed_field_changes_the_graph_and_no_key():
    """Silent: two specs that differ in it have one hash and two graphs."""
    one, two = Planted(depth=2), Planted(depth=3)
    assert compute_hash(one, Stage.COMPILE) == compute_hash(two, Stage.COMPILE)
    assert graph(deep, one) != graph(deep, two)


def test_an_unkeyed_field_cannot_be_read_while_tracing():
    """Caught: units see the spec through a view, which refuses what no COMPILE key contains."""
    with pytest.raises(UndeclaredFactorError, match="depth: found a read of a field that no"):
        graph(deep, RecordingView(Planted(), Scope(("depth", "width")), {}))


def test_a_keyed_field_moves_the_hash():
    """Instead: a field that is declared keyed is in the hash and may be read."""
    one, two = Planted(width=2), Planted(width=3)
    assert compute_hash(one, Stage.COMPILE) != compute_hash(two, Stage.COMPILE)
    view = RecordingView(one, Scope(("width",)), {})
    assert graph(wide, view) == graph(wide, one)


def test_a_switch_that_is_changed_at_run_time_moves_no_key(tiny_spec, monkeypatch):
    """Silent: the file is as it was, so its digest is, and the graph is another."""
    planted = unit(switches.scaled)
    before = key(tiny_spec, planted), graph(switches.scaled)
    monkeypatch.setattr(switches, "FACTOR", 7)
    assert key(tiny_spec, planted) == before[0]
    assert graph(switches.scaled) != before[1]


def test_a_changed_switch_is_refused(tiny_spec, monkeypatch):
    """Caught: globals that traced code reads are compared with their source. As in the source, it traces."""
    trace(unit(switches.scaled), tiny_spec, "cpu")
    monkeypatch.setattr(switches, "FACTOR", 7)
    assert "support.switches.FACTOR = 7" in refused(tiny_spec, unit(switches.scaled))


def test_a_variable_that_a_unit_reads_moves_no_key(tiny_spec, monkeypatch):
    """Silent: with another value the graph is another, under the same key."""
    planted, found = unit(switches.variable_by_get), set()
    for value in ("2", "3"):
        monkeypatch.setenv("SUPPORT_SCALE", value)
        found.add((key(tiny_spec, planted), tuple(graph(switches.variable_by_get))))
    assert len({k for k, _ in found}) == 1
    assert len(found) == 2


def test_a_variable_that_a_unit_reads_is_refused(tiny_spec):
    """Caught: the read is seen, with its line."""
    text = refused(tiny_spec, unit(switches.variable_by_get))
    assert "the environment variable SUPPORT_SCALE at" in text


def test_a_declared_variable_moves_the_key(tiny_spec, monkeypatch):
    """Instead: the unit lists the variable, and its value is in the key. A field of the spec would be better."""
    planted, keys = unit(switches.variable_by_get, environment=("SUPPORT_SCALE",)), set()
    for value in ("2", "3"):
        monkeypatch.setenv("SUPPORT_SCALE", value)
        trace(planted, tiny_spec, "cpu")
        keys.add(key(tiny_spec, planted))
    assert len(keys) == 2


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into a folder on the path; those that were imported are forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def make(**modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
            names.append(name)
        forget()

    def forget():
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.path_importer_cache.pop(str(tmp_path), None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)

    yield make
    forget()


TOP = "import planted_middle\ndef build(spec):\n    return lambda x: planted_middle.apply(x)\n"
MIDDLE = "import planted_bottom\ndef apply(x):\n    return planted_bottom.scale(x) + 1\n"
BOTTOM = "def scale(x):\n    return x * 2\n"
CALLEES = ("planted_middle", "planted_bottom")


def top():
    return importlib.import_module("planted_top").build


def test_an_edit_two_calls_down_moves_no_key(tiny_spec, write):
    """Silent: only the files that a unit lists are digested."""
    write(planted_top=TOP, planted_middle=MIDDLE, planted_bottom=BOTTOM)
    before = key(tiny_spec, unit(top())), graph(top())
    write(planted_bottom=BOTTOM.replace("2", "3"))
    assert key(tiny_spec, unit(top())) == before[0]
    assert graph(top()) != before[1]


def test_an_undeclared_callee_is_refused(tiny_spec, write):
    """Caught: each file of which a function runs must be declared, at any depth."""
    write(planted_top=TOP, planted_middle=MIDDLE, planted_bottom=BOTTOM)
    text = refused(tiny_spec, unit(top(), "planted_middle"))
    assert "planted_bottom.py ran while it was traced" in text
    assert "planted_middle.py ran" not in text


def test_an_edit_of_a_declared_callee_moves_the_key(tiny_spec, write):
    """Instead: with all modules listed, the digest follows the content."""
    write(planted_top=TOP, planted_middle=MIDDLE, planted_bottom=BOTTOM)
    before = key(tiny_spec, unit(top(), *CALLEES))
    trace(unit(top(), *CALLEES), tiny_spec, "cpu")
    write(planted_bottom=BOTTOM.replace("2", "3"))
    assert key(tiny_spec, unit(top(), *CALLEES)) != before
    trace(unit(top(), *CALLEES), tiny_spec, "cpu")


def test_a_constant_of_a_module_of_which_nothing_runs(tiny_spec, monkeypatch):
    """Silent to a watch over files; caught by the watch over globals. Listed, it is compared with its source."""
    build = switches.through_module
    assert "support.settings.SCALE, which comes from a module that is not" in refused(
        tiny_spec, unit(build)
    )
    trace(unit(build, "support.settings"), tiny_spec, "cpu")
    monkeypatch.setattr(settings, "SCALE", 9.0)
    assert "support.settings.SCALE = 9.0" in refused(tiny_spec, unit(build, "support.settings"))


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of operators in a package of its own, loaded; torch brings it for its own tests."""
    source = os.path.join(os.path.dirname(torch.__file__), "lib", "libaoti_custom_ops.so")
    if not os.path.isfile(source):
        pytest.skip("this torch has no library of test operators")
    torch.ops.load_library(source)
    folder = tmp_path / "planted_operators"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    shutil.copy(source, folder / "libops.so")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "libops.so"


def build_anew(file):
    file.write_bytes(file.read_bytes() + b"another build")


def test_a_library_that_is_built_anew_moves_no_key(tiny_spec, library):
    """Silent: no Python file has changed."""
    planted = unit(operator_units.adds)
    before = key(tiny_spec, planted)
    build_anew(library)
    assert key(tiny_spec, planted) == before


def test_an_operator_of_an_unlisted_library_is_refused(tiny_spec, library):
    """Caught: the operators of the traced graph are looked at."""
    text = refused(tiny_spec, unit(operator_units.adds))
    assert "the operator aoti_custom_ops::custom_add, registered by a library" in text


def test_a_listed_library_that_is_built_anew_moves_the_key(tiny_spec, library):
    """Instead: the library is listed, and its content is in the key."""
    listed = NativeLibrary(namespace="aoti_custom_ops", file="planted_operators:libops.so")
    planted = unit(operator_units.adds, libraries=(listed,))
    trace(planted, tiny_spec, "cpu")
    before = key(tiny_spec, planted)
    build_anew(library)
    assert key(tiny_spec, planted) != before


def test_a_file_that_is_edited_after_its_import_gives_its_key_to_the_old_graph(tiny_spec, write):
    """Silent: the digest is that of the new content, the graph that of the old."""
    write(planted_top=BOTTOM + "def build(spec):\n    return scale\n")
    build = top()
    before = key(tiny_spec, unit(build)), graph(build)
    file = sys.modules["planted_top"].__file__
    with open(file, "a", encoding="utf-8") as source:
        source.write("scale = abs\n")
    assert key(tiny_spec, unit(build)) != before[0]
    assert graph(build) == before[1]


def test_code_that_its_file_no_longer_holds_is_refused(tiny_spec, write):
    """Caught: the code that ran is compared with the file. Instead: start the process again."""
    write(planted_top=BOTTOM + "def build(spec):\n    return scale\n")
    build = top()
    trace(unit(build), tiny_spec, "cpu")
    with open(sys.modules["planted_top"].__file__, "w", encoding="utf-8") as source:
        source.write(BOTTOM.replace("2", "3") + "def build(spec):\n    return scale\n")
    assert "planted_top has changed since it was imported" in refused(tiny_spec, unit(build))


def test_the_default_dtype_of_the_process_moves_the_key(tiny_spec):
    """Silent elsewhere: engines set it while they load a model. Here it is in the key, and the usual one is not."""
    planted = unit(switches.adds_a_tensor)
    before = key(tiny_spec, planted), graph(switches.adds_a_tensor)
    torch.set_default_dtype(torch.float64)
    try:
        assert graph(switches.adds_a_tensor) != before[1]
        assert key(tiny_spec, planted) != before[0]
    finally:
        set_torch_state({})
    assert key(tiny_spec, planted) == before[0]


def test_units_of_a_loop_have_keys_of_their_own(tiny_spec):
    """Silent elsewhere: units of one name, scope and module. Here plain values that a function holds are in the key."""
    builds = [functools.partial(switches.layer, index=i) for i in (1, 2)]
    builds += [switches.closure(i) for i in (1, 2)]
    one, two, three, four = builds
    assert graph(one) != graph(two)
    assert graph(three) != graph(four)
    assert len({key(tiny_spec, unit(build)) for build in builds}) == 4
    assert key(tiny_spec, unit(switches.closure(1))) == key(tiny_spec, unit(three))


CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import torch
from graphspec.cache.compiling.fingerprint import graph_fingerprint
from support import switches

class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

prints = {}
for name in ("hidden_loop_over_set", "sorted_loop_over_set"):
    module = Module(getattr(switches, name)(None))
    prints[name] = graph_fingerprint(torch.export.export(module, (torch.ones(2, 4),), strict=False))
print(json.dumps(prints))
"""


def in_a_process(seed):
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, json.dumps(sys.path)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.deep
def test_a_set_gives_another_graph_in_another_process():
    """Silent: one key, and an order that follows the string hashes of the process. The audit compares processes like this.

    Instead: sorted, or written as a tuple, it is the same graph in each.
    """
    one, two = in_a_process("1"), in_a_process("2")
    assert one["hidden_loop_over_set"] != two["hidden_loop_over_set"]
    assert one["sorted_loop_over_set"] == two["sorted_loop_over_set"]


@pytest.mark.parametrize("build", [switches.loop_over_set, switches.list_of_set])
def test_a_set_that_code_goes_through_is_refused(tiny_spec, build):
    """Caught where the code says so: a loop over a set of the module, or over one that stands in the code."""
    assert "is iterated at" in refused(tiny_spec, unit(build))
