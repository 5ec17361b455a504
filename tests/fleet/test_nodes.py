"""Reports of nodes are compared field by field: what moves keys is told from what does not, and the odd node is named."""

import json

import pytest

from graphspec.cli.common import run
from graphspec.cli.doctor import doctor
from graphspec.errors import NodeReportError
from graphspec.fleet.facts import facts_of_node
from graphspec.fleet.nodes import compare_nodes, read_nodes


@pytest.fixture
def node(tmp_path):
    """Writes a report. `facts` and `checks` replace what all nodes have in common."""

    def write(name, facts=None, checks=None, ok=True):
        found = {"torch": "2.13.0", "cache disk": "71.5 GiB free", **(checks or {})}
        report = {
            "healthy": ok,
            "node": {"name": name, "facts": {"device.name": "'H200'", **(facts or {})}},
            "checks": [{"name": n, "ok": ok, "found": f, "hint": ""} for n, f in found.items()],
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(report))
        return str(path)

    return write


def test_a_node_with_another_device_is_the_odd_one(node):
    """Of three nodes, the field names the one that is not with the most."""
    paths = [node("a", {"device.name": "'H100'"}), node("b"), node("c")]
    (found,) = compare_nodes(read_nodes(paths)).keys
    assert found.field == "device.name"
    assert list(found.values.items()) == [("'H200'", ("b", "c")), ("'H100'", ("a",))]
    assert found.odd == ["a"]


def test_a_fact_that_one_node_lacks_differs(node):
    """A variable that is set on one node only is a difference of keys."""
    paths = [node("a", {"toolchain.environment.TORCHINDUCTOR_FREEZING": "'1'"}), node("b")]
    (found,) = compare_nodes(read_nodes(paths)).keys
    assert found.values["nothing"] == ("b",)


def test_what_moves_no_key_is_told_apart(node, capsys):
    """Free space differs on every node; the exit code stays 0."""
    paths = [node("a"), node("b", checks={"cache disk": "3.0 GiB free"})]
    assert run(doctor, ["--fleet", *paths]) == 0
    said = capsys.readouterr().out
    assert "differs      cache disk: 71.5 GiB free on a; 3.0 GiB free on b" in said
    assert "units have the same keys on all of them" in said


def test_different_keys_are_a_finding(node, capsys):
    """In text and in JSON, with exit code 1."""
    paths = [node("a"), node("b", {"device.name": "'B200'"})]
    assert run(doctor, ["--fleet", *paths]) == 1
    assert "KEYS DIFFER  device.name: 'H200' on a; 'B200' on b" in capsys.readouterr().out
    assert run(doctor, ["--fleet", "--json", *paths]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["keys"] == [{"field": "device.name", "values": {"'H200'": ["a"], "'B200'": ["b"]}}]


def test_what_doctor_found_wrong_on_a_node_stays_a_finding(node, capsys):
    """Equal nodes that are ill are no healthy fleet."""
    assert run(doctor, ["--fleet", node("a", ok=False), node("b", ok=False)]) == 1
    assert "PROBLEM      a: torch: 2.13.0" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"node": {"name": 1}}', "nothing"])
def test_a_file_that_is_no_report_is_said_with_all_others(text, node, tmp_path):
    """Each bad file is a problem, and so is one node twice."""
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    good = node("a")
    with pytest.raises(NodeReportError) as caught:
        read_nodes([str(bad), good, good, str(tmp_path / "missing")])
    assert len(caught.value.problems) == 3


def test_one_report_is_no_fleet(node):
    """There is nothing to compare it with, and the hint says how to get another."""
    with pytest.raises(NodeReportError, match="doctor --json"):
        read_nodes([node("a")])


def test_doctor_writes_what_fleet_reads(tmp_path, capsys):
    """The report of this machine, under two names, has no differences; its facts are those of the keys made here."""
    run(doctor, ["--json", "--cache-dir", str(tmp_path / "cache")])
    report = json.loads(capsys.readouterr().out)
    assert report["node"]["facts"] == dict(facts_of_node())
    assert "toolchain for cpu.torch" in report["node"]["facts"]
    paths = []
    for name in "ab":
        report["node"]["name"] = name
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(report))
    found = compare_nodes(read_nodes(list(map(str, paths))))
    assert (found.keys, found.other) == ((), ())
