"""The source digest is content, not place; code outside the declared modules is noticed."""

import importlib.util
import json
import logging
import os
import sys

import pytest

from graphspec.errors import KeyFactorError
from graphspec.keys.source import file_problems, module_file, source_digest
from graphspec.keys.watch import Watch


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """Writes a module into a folder that is on the path for this test, and forgets it afterwards."""
    made = []

    def make(name, body, folder="one"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / f"{name}.py").write_text(body)
        monkeypatch.setattr(sys, "path", [str(place), *sys.path])
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        made.append(name)
        return place / f"{name}.py"

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_the_digest_is_the_content_and_not_the_place(make_module):
    """The same bytes in another folder, with another time, digest alike; one changed byte does not."""
    make_module("declared_code", "x = 1\n", "one")
    first = source_digest(["declared_code"])
    path = make_module("declared_code", "x = 1\n", "two")
    os.utime(path, (1, 1))
    assert module_file("declared_code") == os.path.realpath(path)
    assert source_digest(["declared_code"]) == first
    path.write_text("x = 2\n")
    assert source_digest(["declared_code"]) != first


def test_the_digest_does_not_run_the_module(make_module):
    """A host that only loads can digest code whose import would fail there."""
    make_module("explosive_code", "raise SystemExit('imported')\n")
    assert len(source_digest(["explosive_code"])["explosive_code"]) == 64
    assert "explosive_code" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["", ".", "no_such_module", "no_such.module", "json.nothing", "sys", ".json", "__main__.x"],
)
def test_a_module_without_a_file_is_named(name):
    """Missing, relative, built-in and empty names are a KeyFactorError that says which name."""
    with pytest.raises(KeyFactorError) as caught:
        source_digest([name])
    assert caught.value.problems[0].where == f"module {name}"


def test_a_script_is_no_module(monkeypatch):
    """A unit that is defined in a script (__main__ has no import spec) is a KeyFactorError."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(KeyFactorError):
        module_file("__main__")


def test_code_of_undeclared_modules_is_flagged(make_module):
    """A helper that runs during the trace and is not declared is an error naming its file and the unit."""
    helper = make_module("helper_code", "def add(a):\n    return a + 1\n")
    main = make_module(
        "main_code", "import helper_code\ndef run(a):\n    return helper_code.add(a)\n"
    )
    import main_code

    watch = Watch()
    with watch.watching():
        main_code.run(1)
    assert {str(helper), str(main)} <= watch.files
    problems = file_problems(watch.files, ["main_code"], "mlp")
    stray = [p for p in problems if str(helper) in p.found]
    assert len(stray) == 1
    assert stray[0].where == "unit mlp"
    assert not any(str(main) in p.found for p in problems)


def test_declared_modules_and_the_standard_library_pass(make_module):
    """With every module declared nothing is flagged, and the standard library needs no declaration."""
    make_module("helper_code", "import json\ndef run(a):\n    return json.loads(json.dumps(a))\n")
    import helper_code

    watch = Watch()
    with watch.watching():
        helper_code.run([1])
    assert json.decoder.__file__ not in watch.files
    assert file_problems(watch.files, ["helper_code"], "mlp") == []


def test_importing_a_module_inside_the_trace_is_no_read(make_module):
    """Module bodies are left out; a function of the module that then runs is not."""
    path = make_module("late_code", "VALUE = 3\ndef late():\n    return VALUE\n")
    watch = Watch()
    with watch.watching():
        import late_code
    assert str(path) not in watch.files
    with watch.watching():
        late_code.late()
    assert str(path) in watch.files


def test_log_handlers_of_the_host_are_no_read(make_module, caplog):
    """What runs below a log call belongs to the application and decides nothing about the graph."""
    path = make_module(
        "handler_code",
        "import logging\nclass H(logging.Handler):\n    def emit(self, r):\n        self.got = r\n",
    )
    import handler_code

    logger = logging.Logger("own")
    handler = handler_code.H()
    logger.addHandler(handler)
    watch = Watch()
    with watch.watching():
        logger.warning("hello")
    assert handler.got.msg == "hello"
    assert str(path) not in watch.files


def test_the_watch_ends_with_its_block():
    """The previous profile function is back afterwards, also when the block raises."""

    def before(frame, event, argument):
        return None

    old = sys.getprofile()
    sys.setprofile(before)
    try:
        with pytest.raises(RuntimeError), Watch().watching():
            raise RuntimeError
        assert sys.getprofile() is before
    finally:
        sys.setprofile(old)


def test_generated_code_has_no_file():
    """What Python, attrs and torch.fx generate is not flagged: the code that it comes from is."""
    generated = {"<frozen importlib._bootstrap>", "<attrs generated init a.B>", "<eval_with_key>.1"}
    assert file_problems(generated, [], "mlp") == []
