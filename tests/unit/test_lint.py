"""The lint: every illegal operation of a program is found once, with the line of its own code, and nothing else is."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import torch
import yaml

from graphspec.capture.backends.tape_lint import noting
from graphspec.capture.lint import lint
from graphspec.cli import _root
from graphspec.cli.common import run
from support import illegal, tape_cases, toy
from support.tape_cases import ILLEGAL, LEGAL

SOURCE = Path(illegal.__file__)


def marked(*operations):
    """(line, operation) of the lines that are marked as illegal."""
    lines = enumerate(SOURCE.read_text().splitlines(), start=1)
    found = ((n, m[1]) for n, line in lines if (m := re.search(r"# illegal: (\S+)$", line)))
    return {(n, name) for n, name in found if not operations or name in operations}


@pytest.fixture
def config(tmp_path, tiny_config):
    """Writes the config of a program, and returns its path."""

    def write(program, **sections):
        file = tmp_path / "engine.yaml"
        file.write_text(yaml.safe_dump(tiny_config(program=program, **sections)))
        return str(file)

    return write


def called(capsys, *arguments):
    code = run(_root, ["lint", "--config", *arguments])
    return code, capsys.readouterr().out


def test_each_illegal_operation_is_found_once_with_its_line(config, capsys):
    """All of them, in units and steps, in helpers and loops; the line is the program's and not torch's."""
    code, out = called(capsys, config(illegal.NAME), "--json")
    report = json.loads(out)
    assert code == 1
    found = [(f["line"], f["operation"]) for f in report["findings"]]
    assert sorted(found) == sorted(marked() - marked("Tensor.tolist"))
    assert {f["file"] for f in report["findings"]} == {str(SOURCE)}
    assert all(f["code"] == line_of(f["line"]) for f in report["findings"])
    assert report["not_run"] == []
    assert report["units"] == ["reads", "shapes"]
    seen = {f["operation"]: f["seen_in"] for f in report["findings"]}
    assert seen["aten.nonzero.default"][0] == "unit shapes"
    assert seen["aten.lift_fresh.default"] == [f"step {key}" for key in report["steps"]]
    assert len({f["hint"] for f in report["findings"]}) == 4


def line_of(number):
    return SOURCE.read_text().splitlines()[number - 1].strip()


def test_a_legal_program_has_no_finding(config, capsys):
    """Exit code 0, and one line that says what ran: one step for each depth."""
    table = [[1, 2, 2], [3, 4, 1]]
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": table,
    }
    code, out = called(capsys, config(toy.NAME, speculative=drafts))
    assert (code, out) == (0, "ran 2 units and 2 steps; findings 0, not run to the end 0\n")


def test_what_fails_is_told_and_the_others_still_run(config, capsys):
    """A unit that raises keeps what was found before, and a program that does not start is no clean one."""
    code, out = called(capsys, config("support.illegal:broken"))
    assert code == 1
    (line, _), *_ = marked("Tensor.tolist")
    assert f"illegal.py:{line}: Tensor.tolist: a read of a tensor's value by the host" in out
    assert "aten.nonzero.default" in out
    assert "not run to its end: unit fails: ValueError: odd rows" in out
    assert "not run to its end: steps: OSError: no weights here" in out


def test_a_unit_without_code_of_its_own_has_no_line(tiny_spec, monkeypatch):
    """What torch alone runs is found too; no line of graphspec or torch stands in for the missing one."""
    unit = attrs.evolve(toy.program(tiny_spec).units()[0], build=lambda spec: torch.nonzero)
    only = SimpleNamespace(units=lambda: [unit])
    monkeypatch.setattr("graphspec.capture.lint.load_program", lambda spec: only)
    report = lint(tiny_spec, steps=False)
    assert [(f.operation, f.file, f.line) for f in report.findings] == [
        ("aten.nonzero.default", "", 0)
    ]


def test_units_alone_need_no_weights(config, capsys):
    """With --units-only the program is not started."""
    code, out = called(capsys, config("support.illegal:broken"), "--units-only", "--json")
    report = json.loads(out)
    assert code == 1
    assert report["steps"] == []
    assert [one["where"] for one in report["not_run"]] == ["unit fails"]


def test_a_config_for_another_device_is_linted_on_the_cpu(config, capsys):
    """Units as the config has them, steps for a CPU: no device is needed."""
    device = ("--set", "device.target=cuda")
    code, out = called(capsys, config(illegal.NAME), *device, "--json")
    report = json.loads(out)
    assert code == 1
    assert len(report["findings"]) == 5
    assert report["not_run"] == []


def test_the_example_is_legal(tiny_spec):
    """The reference engine's units and steps have no finding."""
    report = lint(tiny_spec)
    assert report.findings == ()
    assert report.not_run == ()
    assert report.units == ("attention_input", "attention_output", "head")


@pytest.mark.parametrize(("code", "name"), ILLEGAL.values(), ids=ILLEGAL)
def test_what_the_tape_refuses_the_lint_notes(code, name):
    """The same rules: whatever ends a capture is a note here, and the call goes on to its end."""
    noted = []
    with noting(noted.append):
        code(torch.arange(1.0, 7.0).reshape(2, 3))
    assert [n for n in noted if name in n.operation], noted
    assert {n.file for n in noted} <= {__file__, tape_cases.__file__}


@pytest.mark.parametrize("code", LEGAL.values(), ids=LEGAL)
def test_what_the_tape_takes_the_lint_passes(code):
    """Nothing is noted of what a replay repeats."""
    noted = []
    with noting(noted.append):
        code(torch.arange(1.0, 7.0).reshape(2, 3))
    assert noted == []
