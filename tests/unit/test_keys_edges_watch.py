"""The watch call by call: which frames it keeps, whose read of a variable it notes, and what it passes over."""

import contextlib
import json
import logging
import os
import sys
import types
import warnings

import pytest

from graphspec.keys import watch as watch_module
from graphspec.keys.watch import EVERY, Function, Watch, _is_aside, _origin

VARIABLE = "GRAPHSPEC_TEST_WATCHED"


def made(text, **module_globals):
    """The function f of a text, made as code of this file, with these globals alone."""
    code = compile(text, __file__, "exec")
    names = {"os": os, **module_globals}
    exec(code, names)
    return names["f"]


def watched(function, *arguments):
    watch = Watch()
    # Reads may fail; that they happened is noted all the same.
    with watch.watching(), contextlib.suppress(Exception):
        function(*arguments)
    return watch


READS = {
    "os.environ['X']": "X",
    "os.environ.get('X')": "X",
    "os.environ.get('X', 1)": "X",
    "os.getenv('X')": "X",
    "os.getenvb(b'X')": "X",
    "os.environb[b'X']": "X",
    "'X' in os.environ": "X",
    "os.environ.setdefault('X', 'y')": "X",
    "os.environ.pop('X', None)": "X",
    "os.path.expandvars('$X')": "X",
    "os.environ[3]": "3",
    "dict(os.environ)": EVERY,
    "list(os.environ)": EVERY,
    "len(os.environ)": EVERY,
    "repr(os.environ)": EVERY,
    "os.environ.copy()": EVERY,
}


@pytest.mark.parametrize("text", READS)
def test_every_way_to_read_a_variable_is_noted_where_it_is_done(monkeypatch, text):
    """By name, or as a read of all; the reader is the code that asked, not os."""
    monkeypatch.setenv("X", "1")
    function = made(f"def f():\n    1\n    return {text}\n", __name__="mine")
    variables = watched(function).variables
    assert set(variables) >= {(READS[text], f"{__file__}:3")}
    assert {place for _, place in variables} == {f"{__file__}:3"}
    assert READS[text] == EVERY or set(variables) == {(READS[text], f"{__file__}:3")}


def test_a_variable_is_noted_once_for_each_place_also_after_others():
    """Functions of os that ran before do not hide those that read."""
    text = f"def f():\n    os.fspath('a'), os.getenv('{VARIABLE}')\n    for _ in 'ab': os.getenv('{VARIABLE}')\n"
    places = [(VARIABLE, f"{__file__}:{line}") for line in (2, 3)]
    assert watched(made(text, __name__="mine")).variables == tuple(places)


def test_reads_of_the_toolchain_and_of_log_calls_are_nobodys():
    """Torch reads what it likes; handlers of the host are not the unit's code."""
    text = f"def f():\n    return os.getenv('{VARIABLE}')\n"
    inner = made(text, __name__="mine")
    code = inner.__code__.replace(co_filename=json.__file__)
    toolchain = types.FunctionType(code, inner.__globals__)
    assert watched(toolchain).variables == ()

    class Reads(logging.Handler):
        def emit(self, record):
            inner()

    logger = logging.Logger("own")
    logger.addHandler(Reads())
    assert watched(lambda: logger.warning("a")).variables == ()
    assert watched(inner).variables == ((VARIABLE, f"{__file__}:2"),)


def test_functions_are_kept_with_their_globals():
    """Those that ran, each once, and nothing of the toolchain."""
    inner = made("def f(): return 1", __name__="mine")
    outer = made(
        "def f(): return inner() + inner() + len(json.dumps({}, indent=1))", inner=inner, json=json
    )
    outer.__globals__["__name__"] = "mine"
    watch = watched(outer)
    assert list(watch.functions.values()) == [
        Function(outer.__code__, outer.__globals__),
        Function(inner.__code__, inner.__globals__),
    ]
    assert watch.functions.keys() == {id(outer.__code__), id(inner.__code__)}
    assert watch.files == {__file__}


def frame(file="/mine.py", *, back=None, qualname="f", local=None, **module_globals):
    code = types.SimpleNamespace(co_filename=file, co_qualname=qualname)
    return types.SimpleNamespace(
        f_code=code, f_globals=module_globals, f_back=back, f_locals=local or {}, f_lineno=1
    )


def kept(*frames):
    """The origins of the frames that a watch keeps of some calls."""
    watch = Watch()
    for one in frames:
        watch._called(one, None)
    return [_origin(f.code, f.module_globals) for f in watch.functions.values()]


TORCH, MINE = {"__name__": "torch.fx"}, {"__name__": "mine"}


def test_code_without_a_file_belongs_to_the_module_it_was_made_in():
    """Code of one file name may be the toolchain's or the unit's."""
    assert kept(frame("<string>", **TORCH), frame("<string>", **MINE)) == ["module mine"]
    assert kept(frame("<lambda>", **TORCH)) == []
    assert kept(frame("<attrs generated init a.B>", **MINE)) == []
    assert kept(frame("/mine.py", **TORCH)) == ["/mine.py"]


@pytest.mark.parametrize(
    ("name", "module_globals", "origin"),
    [
        ("/a.py", MINE, "/a.py"),
        ("<string>", MINE, "module mine"),
        ("<string>", {}, "module ?"),
        ("<frozen os>", MINE, "<frozen os>"),
        ("<eval_with_key>.1", MINE, "<eval_with_key>.1"),
        ("<attrs generated init a.B>", MINE, "<attrs generated init a.B>"),
        ("<__array_function__ internals>", MINE, "<__array_function__ internals>"),
    ],
)
def test_the_origin_of_code_is_its_file_or_its_module(name, module_globals, origin):
    """What is made from other code keeps its own name."""
    assert _origin(types.SimpleNamespace(co_filename=name), module_globals) == origin


def test_code_from_a_text_that_the_toolchain_calls_is_the_toolchains():
    """In no module: Dynamo's guards. In a module, or called by somebody else, it is not."""
    toolchain, mine = frame(json.__file__, **TORCH), frame(**MINE)
    assert kept(frame("<string>", back=toolchain)) == []
    assert kept(frame("<string>", back=frame("<text>", **TORCH))) == []
    assert kept(frame("<string>", back=frame("<text>", **MINE))) == ["module ?"]
    assert kept(frame("<string>", back=toolchain, **MINE)) == ["module mine"]
    assert kept(frame("<string>", back=mine)) == ["module ?"]
    assert kept(frame("<string>")) == ["module ?"]


def test_a_function_that_dynamo_goes_through_counts_as_run():
    """With the code and the globals of the tracer; the toolchain's own do not count."""
    dynamo = "/site/torch/_dynamo/symbolic_convert.py".replace("/", os.sep)
    name = "InliningInstructionTranslator.inline_call_"

    def interprets(file, code_file, **module_globals):
        code = types.SimpleNamespace(co_filename=code_file)
        tracer = types.SimpleNamespace(f_code=code, f_globals=module_globals)
        return frame(file, qualname=name, local={"self": tracer}, **TORCH)

    assert kept(interprets(dynamo, "/unit.py", **MINE)) == ["/unit.py"]
    assert kept(interprets(dynamo, json.__file__, **TORCH)) == []
    assert kept(interprets(f"{os.sep}other.py", "/unit.py", **MINE)) == [f"{os.sep}other.py"]
    assert kept(frame(dynamo, qualname="other", **TORCH)) == [dynamo]
    texts = [interprets(dynamo, f"<{n}>", __name__=n) for n in ("torch.fx", "one", "two")]
    assert kept(*texts) == ["module one", "module two"]


def test_the_files_of_the_toolchain_are_looked_at_once():
    """All but those in which a call of interest lies, and code without a file."""
    folder = os.path.dirname(os.path.realpath(json.__file__))
    interpreter = os.path.join(folder, "torch", "_dynamo", "symbolic_convert.py")
    watch = Watch()
    for name in (json.__file__, os.__file__, interpreter, "<frozen os>", "/mine.py"):
        watch._called(frame(name, **TORCH), None)
    environ = watch_module._ONE_VARIABLE.co_filename
    watch._called(frame(environ, **TORCH), None)
    assert watch._boring == {json.__file__, os.__file__} - {environ}
    called = frame("/mine.py", **MINE)
    called.f_code = watch.functions[next(iter(watch.functions))].code
    watch._called(called, None)
    assert [f.module_globals for f in watch.functions.values()] == [TORCH]


def test_what_runs_below_imports_logs_and_warnings_is_aside():
    """Up to the caller of the watch; above it anything may stand."""
    top = frame(logging.__file__)
    caller = frame("/caller.py", back=top)
    plain = frame("/a.py", back=frame("/b.py", back=caller))
    assert _is_aside(plain, caller) is False
    assert _is_aside(caller, caller) is False
    assert _is_aside(None, caller) is False
    assert _is_aside(plain, None) is True
    for name in (
        logging.__file__,
        warnings.__file__,
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
    ):
        assert _is_aside(frame("/a.py", back=frame(name, back=caller)), caller) is True
        assert _is_aside(frame(name, back=caller), caller) is True
        watch = Watch()
        watch._called(frame("/a.py", back=frame(name, back=caller), **MINE), caller)
        assert watch.functions == {}


def test_a_watch_inside_a_log_call_sees_what_runs_in_it():
    """An engine may be warmed by a log handler: what stands above the caller does not matter."""
    text = f"def f():\n    os.getenv('{VARIABLE}')\n    len(os.environ)\n"
    function = made(text, __name__="mine")
    seen = []

    class Warms(logging.Handler):
        def emit(self, record):
            seen.append(watched(function))

    logger = logging.Logger("own")
    logger.addHandler(Warms())
    logger.warning("a")
    assert seen[0].variables == ((VARIABLE, f"{__file__}:2"), (EVERY, f"{__file__}:3"))
    assert [f.code for f in seen[0].functions.values()] == [function.__code__]


def test_the_reader_of_a_variable_is_behind_its_accessors():
    """Modules that read on behalf of others are passed over; without a reader there is no read."""
    names = ("os", "_collections_abc", "collections.abc", "posixpath", "ntpath", "genericpath")
    back = frame("/reader.py", **MINE)
    for name in names:
        back = frame(f"/{name}.py", back=back, __name__=name)
    watch = Watch()
    watch._variable(frame(os.__file__, back=back, __name__="os"), "A", None)
    assert watch.variables == (("A", "/reader.py:1"),)
    watch._variable(frame(os.__file__, back=None, __name__="os"), "B", None)
    watch._variable(
        frame(os.__file__, back=frame("/x.py", __name__="os"), __name__="os"), "C", None
    )
    watch._variable(frame("/a.py", back=frame("/nameless.py")), "D", None)
    for module_globals in (TORCH, MINE):
        watch._variable(frame("/a.py", back=frame("<text>", **module_globals)), "E", None)
    assert watch.variables == (
        ("A", "/reader.py:1"),
        ("D", "/nameless.py:1"),
        ("E", "<text>:1"),
    )


def test_the_profile_function_of_before_is_put_back():
    """Calls alone are looked at, on this thread, while the block runs."""
    before = sys.getprofile()
    watch = Watch()
    with watch.watching():
        assert sys.getprofile() is not before
    assert sys.getprofile() is before
