"""`graphspec check` on the files of tests/unit/data/broken: the whole text of each report, as reviewed.

The reports are in __snapshots__/test_broken_files.ambr. After a change of a message, read it there as a user would:
``pytest tests/unit/test_broken_files.py --snapshot-update``.
"""

import json
import re
import time
from pathlib import Path

import pytest
import yaml

from graphspec.cli.check import check
from graphspec.cli.common import run
from graphspec.errors import Problem, SpecError
from graphspec.formats.read import read_document
from graphspec.speculators import registry
from support.specs import ROOT

FOLDER = Path("tests/unit/data/broken")
NAMES = sorted(path.name for path in (ROOT / FOLDER).iterdir())

MACHINE = {
    "both-absent.yaml",
    "checkpoint-absent.yaml",
    "checkpoint-no-gguf.yaml",
    "checkpoint-unreadable.yaml",
    "draft-unreadable.yaml",
    "package-absent.yaml",
}
"""Files that are as they should be, on a machine that lacks what they name."""

WHOLE_FILE = {"alias-bomb.yaml", "alias-of-itself.yaml", "not-utf-8.yaml", "utf-16.yaml"}
"""Files whose report names no line: what is wrong is no single place, or lies outside of the file."""

LIBYAML = {"colon-in-value.yaml", "deep-nesting.yaml", "indentation.yaml", "tab.yaml"}
"""Files whose report has libyaml's own words for broken syntax. Where PyYAML was built without it, they differ."""

HEADLINES = {2: "error: the config is not usable", 3: "error: this machine lacks something"}
PLACE = re.compile(r"(?P<file>[^:\s]+):(?P<line>\d+)(:\d+)?(: (?P<path>\S.*))?")
SENTENCE = re.compile(r"  (?P<where>\S.*?): found (?P<found>\S.*); wanted (?P<wanted>\S.*)")
HINT = re.compile(r"      (?P<hint>\S.*)")
SECONDS = 5


@pytest.fixture
def ran(monkeypatch, capsys):
    """Runs the command on one of the files, from the repository root, with the methods that are installed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(registry, "_registered", {})

    def checked(name, *options):
        began = time.monotonic()
        code = run(check, ["--config", str(FOLDER / name), *options])
        assert time.monotonic() - began < SECONDS
        return code, capsys.readouterr()

    return checked


def parsed(report):
    """The headline and the problems of a report. Any line that is neither, or a hint below a problem, is an error."""
    headline, *lines = report.splitlines()
    problems = []
    for line in lines:
        sentence = SENTENCE.fullmatch(line)
        if sentence:
            problems.append({**sentence.groupdict(), "hint": ""})
        else:
            assert HINT.fullmatch(line), line
            assert problems, line
            assert not problems[-1]["hint"], line
            problems[-1]["hint"] = line.strip()
    return headline, problems


def placed(problem):
    """File, line and dotted path of a problem; the path is None where the whole file, or its syntax, is meant."""
    place = PLACE.fullmatch(problem["where"])
    assert place, problem
    return place["file"], int(place["line"]), place["path"]


def test_there_are_files_of_every_format():
    """Forty files and more, some of each format."""
    assert len(NAMES) >= 40
    assert {Path(name).suffix for name in NAMES} == {".yaml", ".toml", ".json"}
    assert set(NAMES) > MACHINE


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_is_explained(ran, snapshot, name):
    """The report is the reviewed one, on standard error alone; exit 2, or 3 where only the machine is at fault."""
    code, (out, report) = ran(name)
    assert code == (3 if name in MACHINE else 2)
    assert out == ""
    # The words of some syntax errors are libyaml's own.
    if name not in LIBYAML or yaml.__with_libyaml__:
        assert report == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_a_report_has_one_shape(ran, name):
    """A headline with the count, then for each problem file, line, found and wanted on one line, and at most one hint."""
    code, (_, report) = ran(name)
    headline, problems = parsed(report)
    count = f" ({len(problems)} problems)" if len(problems) > 1 else ""
    assert headline == f"{HEADLINES[code]}{count}:"
    if name not in WHOLE_FILE:
        assert {placed(p)[0] for p in problems} == {str(FOLDER / name)}


@pytest.mark.parametrize("name", NAMES)
def test_no_problem_comes_twice(ran, name):
    """No two problems of a report say the same of one place."""
    _, problems = parsed(ran(name)[1].err)
    said = [tuple(p.values()) for p in problems]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("name", sorted(set(NAMES) - WHOLE_FILE))
def test_a_problem_is_where_its_key_is(ran, name):
    """The line of a problem has the last key of its path; of a key that nobody wrote, the nearest one around it."""
    lines = ["", *(ROOT / FOLDER / name).read_text().splitlines(), ""]
    first = next((i for i, line in enumerate(lines) if line and line[0] != "#"), 1)
    known = written(name)
    for problem in parsed(ran(name)[1].err)[1]:
        _, number, path = placed(problem)
        key = nearest(path, known, problem["found"]) if path else ""
        if key == "":
            assert number == first or path is None, problem
        else:
            assert holds(lines[number], key, problem), problem


def written(name):
    """Every dotted path of the file as reports write it, with its last key; None where the reader refuses the file."""
    try:
        return dict(paths(read_document(str(ROOT / FOLDER / name)).data, "", ""))
    except SpecError:
        return None


def paths(data, around, last):
    yield around, last
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        shown = f"[{key}]" if isinstance(key, int) else f".{escaped(key)}"
        yield from paths(data[key], f"{around}{shown}".removeprefix("."), key)


def escaped(key):
    return key if key.isprintable() else key.encode("unicode_escape").decode()


def nearest(path, known, found):
    """The last key of the longest written part of a path. What the reader refused is in the file, path and all."""
    if known is None:
        key = re.match(r"a key '(.*)' of kind", found)
        return key[1] if key else re.findall(r"[^.\[\]]+", path)[-1]
    if path in known:
        return known[path]
    folded = {key.replace("-", "_"): last for key, last in known.items()}
    cuts = [i for i, char in enumerate(f"{path}.") if char in ".[: "]
    return next((folded[path[:i]] for i in reversed(cuts) if path[:i] in folded), "")


def holds(line, key, problem):
    """Whether the line has the key, or the value that stands in the place of a number in a list."""
    if isinstance(key, int):
        shown = re.match(r"'?(\[?[^ ',\]]*)", problem["found"])[1]
        return shown in line or shown == "nothing"
    spellings = "|".join(re.escape(spelled) for spelled in (key, escaped(key)))
    return re.search(rf"""(^|[\s,{{."'\[])({spellings})['"]?\s*([:=\].]|$)""", line)


@pytest.mark.parametrize("name", ["wrong-types.yaml", "counts.json", "switches.toml"])
def test_nothing_is_coerced(ran, name):
    """Of values that would do if they were turned into another type, every single one is a problem."""
    data = read_document(str(ROOT / FOLDER / name)).data
    refused = {placed(p)[2] for p in parsed(ran(name)[1].err)[1]}
    right = [("model.source", data["model"]["source"]), ("speculative.method", "ngram")]
    assert refused == {path for path, value in leaves(data, "") if (path, value) not in right}
    assert len(refused) > 5


def leaves(section, around):
    """The fields of all sections with their values. What stands for a value is one, whatever it holds."""
    for name, value in section.items():
        path = f"{around}{name}"
        if around == "" and isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


@pytest.mark.parametrize(
    "name",
    [
        "many-problems.yaml",
        "many-facts.yaml",
        "counts.json",
        "duplicate-table.toml",
        "odd-keys.yaml",
        "tab.yaml",
        "checkpoint-absent.yaml",
    ],
)
def test_json_says_the_same(ran, name):
    """`--json` gives the same problems with the same four parts, on standard output alone."""
    code, (_, report) = ran(name)
    as_json, (out, err) = ran(name, "--json")
    made = json.loads(out)
    assert (as_json, err) == (code, "")
    assert made["exit_code"] == code
    assert made["error"] == {2: "SpecError", 3: "EnvironmentProblem"}[code]
    problems = [Problem(**p) for p in made["problems"]]
    if all(p.where.isprintable() for p in problems):
        assert [p.render().replace("\n", "\n  ") for p in problems] == report_entries(report)
    else:
        assert len(problems) == len(parsed(report)[1])


def report_entries(report):
    """The problems of a report as text, each with its hint."""
    return re.split(r"\n  (?=\S)", report.rstrip("\n"))[1:]


def test_the_file_with_everything_is_reported_whole(ran):
    """Problems of all sections, and those that the checkpoints show, come in one report in the order of the file."""
    _, problems = parsed(ran("many-problems.yaml")[1].err)
    places = [placed(p) for p in problems]
    assert len(problems) >= 8
    assert [line for _, line, _ in places] == sorted(line for _, line, _ in places)
    sections = {path.split(".")[0] for _, _, path in places}
    assert sections >= {"model", "parallel", "kv_cache", "kernels", "compilation", "speculative"}
