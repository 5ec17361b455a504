"""Digests of modules and the code that may run beside them: links, folders of packages, names, edited files."""

import hashlib
import importlib
import os
import sys
import sysconfig
import types

import pytest

from graphspec.errors import KeyFactorError, Problem
from graphspec.keys import source
from graphspec.keys.loaded import stale_problems
from graphspec.keys.source import (
    ToolchainCode,
    file_problems,
    is_toolchain_module,
    module_file,
    real_origin,
    source_digest,
)
from graphspec.keys.undeclared import undeclared, variable_problems
from graphspec.keys.watch import EVERY, Function

FOLDER = os.path.dirname(os.path.realpath(source.__file__))


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes modules of which the functions can be imported, and forgets them afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return str(tmp_path / f"{name}.py")

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "name",
    ["no_such_module", "sys", "", "no_such.module", "json.nothing", ".json", "graphspec.nothing"],
)
def test_a_module_without_a_file_is_refused_whole(name):
    """Missing, built in, relative or empty."""
    with pytest.raises(KeyFactorError) as caught:
        module_file(name)
    assert caught.value.problems == (
        Problem(
            where=f"module {name}",
            found="no file with its code",
            wanted="an importable module that lies in a file",
            hint="list in `modules` the dotted names of the files that the unit's code comes from",
        ),
    )


def test_a_folder_without_code_is_no_module(tmp_path, monkeypatch):
    """A namespace package has a spec and no file; a file that is gone is none either."""
    (tmp_path / "graphspec_test_space").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyFactorError):
        module_file("graphspec_test_space")
    gone = types.ModuleType("graphspec_test_gone")
    gone.__spec__ = importlib.machinery.ModuleSpec("graphspec_test_gone", None, origin="/gone.py")
    monkeypatch.setitem(sys.modules, "graphspec_test_gone", gone)
    with pytest.raises(KeyFactorError):
        module_file("graphspec_test_gone")


def test_the_file_of_a_module_has_no_links(modules, tmp_path, monkeypatch):
    """A module below a link is the file itself."""
    path = modules("graphspec_test_linked", "x = 1\n")
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "link"), *sys.path])
    assert module_file("graphspec_test_linked") == os.path.realpath(path)
    assert real_origin(str(tmp_path / "link" / "a.py")) == str(tmp_path.resolve() / "a.py")
    assert real_origin("module a.b") == "module a.b"
    assert real_origin("<frozen a>") == "<frozen a>"
    assert real_origin("a.py") == os.path.realpath("a.py")


def test_the_digest_is_sha256_by_name(modules):
    """Of the bytes, in the order of the names."""
    modules("graphspec_test_b", "b = 1\r\n")
    modules("graphspec_test_a", "a = 1\n")
    assert list(source_digest(["graphspec_test_b", "graphspec_test_a"]).items()) == [
        (
            "graphspec_test_b",
            hashlib.sha256(b"b = 1\n" if os.linesep == "\r\n" else b"b = 1\r\n").hexdigest(),
        ),
        ("graphspec_test_a", hashlib.sha256(b"a = 1\n").hexdigest()),
    ]


def test_a_unit_without_modules_is_refused_whole():
    """Its key would cover no code."""
    with pytest.raises(KeyFactorError) as caught:
        source_digest([])
    assert caught.value.problems == (
        Problem(
            where="modules of a unit",
            found="none, and its build function lies in no importable module",
            wanted="the modules that its code comes from",
            hint="move the unit's code from the script or notebook into a module, and list it in `modules`",
        ),
    )


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("torch", True),
        ("torch._inductor.config", True),
        ("json", True),
        ("xml.dom.minidom", True),
        ("_distutils_hack", True),
        ("__main__", False),
        ("torchvision", False),
        ("mine.torch", False),
        ("mine.json.x", False),
        ("", False),
    ],
)
def test_modules_of_the_toolchain_are_known_by_their_package(name, ours):
    """The first name decides; a script is nobody's."""
    assert is_toolchain_module(name) is ours


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of packages on the path, another one behind a link, and one that is called something else."""
    names = ["a/site-packages", "b/elsewhere", "own", "c/dist-packages"]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "site-packages").symlink_to(folders[1])
    packages = ["a/site-packages", "link/site-packages", "c/dist-packages", "own"]
    path = [str(tmp_path / folder) for folder in packages]
    monkeypatch.setattr(sys, "path", path)
    return ToolchainCode(), [str(f.resolve()) for f in folders]


def test_code_of_the_toolchain_is_known_by_its_folder(packages):
    """Packages by name in folders of packages; the standard library; nothing beside them."""
    toolchain, (one, two, own, three) = packages
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    covered = {
        f"{one}/torch/nn/functional.py": True,
        f"{one}/typing_extensions.py": True,
        f"{one}/torchvision/ops.py": False,
        f"{one}/mine.py": False,
        f"{one}/mine/torch/x.py": False,
        f"{two}/sympy/core/add.py": True,
        f"{two}/mine/x.py": False,
        f"{three}/numpy/x.py": True,
        f"{three}/mine/x.py": False,
        f"{own}/torch/x.py": False,
        f"{one}-more/torch/x.py": False,
        f"{library}/json/decoder.py": True,
        f"{library}-more/json.py": False,
        f"{FOLDER}/scope.py": True,
        f"{FOLDER}/source.py": True,
        f"{FOLDER}/factors.py": True,
        f"{FOLDER}/watch.py": True,
        f"{os.path.dirname(FOLDER)}/fields.py": True,
        f"{FOLDER}/golden.py": False,
        "<frozen a>": True,
        "<string>": True,
        "module torch.fx": True,
        "module json": True,
        "module namedtuple_Point": True,
        "module mine": False,
        "module __main__": False,
        "mine.py": False,
    }
    assert {origin: toolchain.covers(origin) for origin in covered} == covered


def test_stray_code_is_refused_file_by_file(modules):
    """Sorted; what is declared, by file or by name, and the toolchain are left out."""
    one = os.path.realpath(modules("graphspec_test_one", "x = 1\n"))
    seen = ["module b", "/z.py", "/a.py", one, "module graphspec_test_made", "module torch", "<x>"]
    declared = ["graphspec_test_one"]
    found = file_problems(seen, declared, "mlp")
    assert found == [
        Problem(
            where="unit mlp",
            found=f"code from {path} ran while it was traced",
            wanted="code from its declared modules ('graphspec_test_one',) or the toolchain",
            hint="add the module to the unit's `modules`, so that a change of its content changes the key",
        )
        for path in ("/a.py", "/z.py", "module b", "module graphspec_test_made")
    ]
    modules("graphspec_test_made", "")
    found = file_problems(seen, ["graphspec_test_one", "graphspec_test_made"], "mlp")
    assert [p.found.split()[2] for p in found] == ["/a.py", "/z.py", "module"]


BODY = "def f(a):\n    def inner():\n        return [a for _ in 'x']\n    return inner\n"


def stale(name, path):
    return Problem(
        where="unit mlp",
        found=f"module {name} has changed since it was imported: {path} holds other code than what ran",
        wanted="the code that its digest in the key stands for",
        hint="start the process again; nothing was stored",
    )


def test_code_that_its_file_no_longer_holds_is_refused(modules):
    """By module; code inside code counts, comments do not, and a module of which nothing ran is left out."""
    names = [f"graphspec_test_{n}" for n in ("one", "two", "idle")]
    paths = {name: modules(name, BODY) for name in names}
    found = {name: importlib.import_module(name) for name in names}
    ran = []
    for name in names[:2]:
        outer = found[name].f
        ran += [Function(outer.__code__, {}), Function(outer(1).__code__, {})]
    declared = ["graphspec_test_missing", "sys", *names]
    assert stale_problems(ran, declared, "mlp") == []
    for path in paths.values():
        with open(path, "a") as file:
            file.write("# a comment\n")
    assert stale_problems(ran, declared, "mlp") == []
    for path in paths.values():
        with open(path, "w") as file:
            file.write(BODY.replace("'x'", "'y'"))
    wanted = [stale(name, os.path.realpath(paths[name])) for name in names[:2]]
    assert stale_problems(ran, declared, "mlp") == wanted
    assert stale_problems(ran[:1], declared, "mlp") == wanted[:1]
    with open(paths[names[0]], "w") as file:
        file.write("def f(:\n")
    assert stale_problems(ran[:1], declared, "mlp") == wanted[:1]
    assert stale_problems(ran[2:], names[:1], "mlp") == []


def test_all_of_a_file_may_have_run(modules):
    """The module's own code too, and in whatever encoding it is written."""
    text = "# coding: latin-1\ndef f():\n    return 'é'\n"
    path = modules("graphspec_test_latin", "")
    with open(path, "wb") as file:
        file.write(text.encode("latin-1"))
    module = importlib.import_module("graphspec_test_latin")
    whole = compile(text.encode("latin-1"), path, "exec")
    ran = [Function(whole, {}), Function(module.f.__code__, {})]
    assert stale_problems(ran, ["graphspec_test_latin"], "mlp") == []


def test_a_module_that_a_hook_has_rewritten_is_left_out(modules, monkeypatch):
    """Its code is never that of its file."""
    path = modules("graphspec_test_hooked", BODY)
    module = importlib.import_module("graphspec_test_hooked")
    ran = [Function(module.f.__code__, {})]
    with open(path, "w") as file:
        file.write("\n" + BODY)

    class Hook(importlib.machinery.SourceFileLoader):
        pass

    assert len(stale_problems(ran, ["graphspec_test_hooked"], "mlp")) == 1
    monkeypatch.setattr(module.__spec__, "loader", Hook("graphspec_test_hooked", path))
    assert stale_problems(ran, ["graphspec_test_hooked"], "mlp") == []


class Seen:
    """What a watch says after a trace."""

    def __init__(self, files=(), variables=(), functions=()):
        self.files = files
        self.variables = variables
        self.functions = dict(enumerate(functions))


def read(found):
    return Problem(
        where="unit mlp",
        found=found,
        wanted="values that the key covers",
        hint="make it a field of the spec, or list the variable in the unit's `environment`",
    )


def test_reads_of_variables_are_refused_one_by_one():
    """Declared ones and those in every key are fine; a copy of all is told once for its place."""
    variables = [
        ("MINE", "a.py:1"),
        ("DECLARED", "a.py:2"),
        ("TRITON_F32_DEFAULT", "a.py:3"),
        ("NCCL_ALGO", "a.py:4"),
        (EVERY, "a.py:5"),
        ("MINE", "a.py:5"),
    ]
    assert variable_problems(Seen(variables=variables), ["DECLARED"], "mlp") == [
        read("a read of the environment variable MINE at a.py:1"),
        read("a read of the environment variable NCCL_ALGO at a.py:4"),
        read("a read of all environment variables at a.py:5"),
    ]


def test_everything_undeclared_is_in_one_list(modules):
    """Files, variables, globals and stale code, in this order."""
    path = modules("graphspec_test_all", "import os\nX = len(os.sep)\ndef f():\n    return X\n")
    module = importlib.import_module("graphspec_test_all")
    module.X = 5
    with open(path, "a") as file:
        file.write("\n\ndef g(): pass\n")
    function = Function(module.f.__code__, vars(module))
    with open(path, "w") as file:
        file.write("X = 1\n\n\ndef f():\n    return X\n")
    watch = Seen(["/a.py"], [("MINE", "a.py:1"), ("ALSO", "a.py:2")], [function])
    found = undeclared(watch, ["graphspec_test_all"], ["ALSO"], "mlp")
    assert [p.where for p in found] == ["unit mlp"] * 4
    assert [p.found.split(" ")[0:3] for p in found] == [
        ["code", "from", "/a.py"],
        ["a", "read", "of"],
        ["module", "global", "graphspec_test_all.X"],
        ["module", "graphspec_test_all", "has"],
    ]
