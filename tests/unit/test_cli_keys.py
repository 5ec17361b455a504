"""``graphspec keys``: the list of fields, and golden keys from the command line."""

import json
from pathlib import Path

import pytest
import yaml

from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.engine import EngineConfig
from graphspec.fields import Stage, config_class, is_config_class, keyed, policies
from graphspec.keys import encoding, factors
from graphspec.keys.inventory import config_classes, inventory, type_text
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class
from support.specs import config_folder, plain_config
from support.speculative import registered


@pytest.fixture
def configs(tmp_path):
    """Two config files of the tiny model, and where their goldens go."""
    data = plain_config(config_folder(tmp_path / "model"))
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(data))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**data, "speculative": None}))
    return [str(tmp_path / name) for name in ("one.yaml", "two.yaml", "goldens.json")]


def called(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = run(_root, ["keys", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def locked(capsys, configs, *more):
    one, two, goldens = configs
    return called(capsys, "lock", "--config", one, "--config", two, "--output", goldens, *more)


def test_lock_and_check_agree(capsys, configs):
    """Goldens are named after the files; nothing has changed when nothing has changed."""
    code, out, err = locked(capsys, configs)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["one", "two"]
    assert out.splitlines()[-1] == f"epoch {encoding.EPOCH}, written to {configs[2]}"
    assert called(capsys, "check", "--goldens", configs[2]) == (
        0,
        "2 goldens: no key changed\n",
        "",
    )


def test_lock_prints_the_hashes_of_the_contract(capsys, configs):
    """As JSON: the hashes that compute_hash gives."""
    spec = EngineConfig.from_dict(yaml.safe_load(Path(configs[0]).read_text())).resolve()
    code, out, _ = locked(capsys, configs, "--json")
    report = json.loads(out)
    assert (code, report["epoch"], report["goldens"]) == (0, encoding.EPOCH, configs[2])
    assert report["specs"]["one"] == {s.value: spec.compute_hash(s) for s in Stage}


def test_settings_apply_to_every_config(capsys, configs):
    """--set changes what is locked, as in every other command."""
    locked(capsys, configs, "--set", "scheduler.max_num_seqs=3")
    text = Path(configs[2]).read_text()
    assert text.count('"scheduler.max_num_seqs = 3"') == 2


def drifted(capsys, configs, monkeypatch):
    locked(capsys, configs)
    monkeypatch.setattr(
        NgramSpeculatorConfig, "hash_factors", lambda self, stage, k: {"seed": stage.value}
    )


def test_check_explains_a_drift_with_exit_code_1(capsys, configs, monkeypatch):
    """Which golden, which key, which factor, and what to do."""
    drifted(capsys, configs, monkeypatch)
    code, out, err = called(capsys, "check", "--goldens", configs[2])
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("one: the COMPILE key changed, ")
    assert lines[1] == '  appeared  speculative.seed: "compile"'
    assert lines[3] == '  appeared  speculative.seed: "capture"'
    assert "2 goldens, 1 of them changed" in lines
    assert "graphspec.keys.encoding.EPOCH" in out
    assert lines[-1] == f"  graphspec keys lock --output {configs[2]}"


def test_check_as_json_has_the_same(capsys, configs, monkeypatch):
    """Every factor with its kind and both values, by stage."""
    drifted(capsys, configs, monkeypatch)
    code, out, _ = called(capsys, "check", "--goldens", configs[2], "--json")
    report = json.loads(out)
    assert code == 1
    assert "EPOCH" in report["advice"]
    one, two = report["specs"]
    assert (one["name"], one["changed"], two["name"], two["changed"]) == ("one", True, "two", False)
    assert one["compile"]["changes"] == [
        {"kind": "appeared", "path": "speculative.seed", "before": None, "after": '"compile"'}
    ]
    assert one["compile"]["before"] != one["compile"]["after"]
    assert two["capture"]["before"] == two["capture"]["after"]
    assert one["lines"][0].startswith("one: ")


def test_lock_refuses_other_keys_of_one_epoch_with_exit_code_1(capsys, configs, monkeypatch):
    """Raising the epoch is what makes them welcome."""
    drifted(capsys, configs, monkeypatch)
    code, _, err = locked(capsys, configs)
    assert code == 1
    assert 'appeared  speculative.seed: "compile"' in err
    code, out, _ = called(capsys, "lock", "--output", configs[2], "--json")
    assert (code, json.loads(out)["error"]) == (1, "GoldenDriftError")
    for module in (encoding, factors):
        monkeypatch.setattr(module, "EPOCH", encoding.EPOCH + 1)
    assert "lock anew" in called(capsys, "check", "--goldens", configs[2])[1]
    assert called(capsys, "lock", "--output", configs[2])[0] == 0
    assert called(capsys, "check", "--goldens", configs[2])[0] == 0


def test_two_configs_of_one_name_are_refused(capsys, configs, tmp_path):
    """A golden has one name, so the second file is named in the error."""
    again = tmp_path / "again" / "one.yaml"
    again.parent.mkdir()
    again.write_text(Path(configs[0]).read_text())
    code, _, err = called(
        capsys, "lock", "--config", configs[0], "--config", str(again), "--output", configs[2]
    )
    assert code == 2
    assert f"--config {again}" in err


def test_problems_of_a_config_have_file_and_line(capsys, configs):
    """As in every other command, with exit code 2; a checkpoint that is not here alone is 3."""
    code, _, err = locked(capsys, configs, "--set", "kv_cache.num_blocks=2")
    assert code == 2
    assert "--set kv_cache.num_blocks=2" in err
    Path(configs[1]).write_text("model: {source: /nowhere}\n")
    assert locked(capsys, configs)[0] == 3


def test_check_of_a_file_that_is_not_there(capsys, configs):
    """Exit code 2 with the file's name."""
    code, _, err = called(capsys, "check", "--goldens", configs[2])
    assert code == 2
    assert configs[2] in err


def is_ours(cls):
    return cls.__module__.startswith("graphspec.")


def rows(capsys):
    code, out, _ = called(capsys, "fields", "--json")
    assert code == 0
    return json.loads(out)["fields"]


def test_fields_lists_every_field_of_every_class(capsys):
    """Config, contract, and the class of every method with those that it specialises to; each as it is declared."""
    found = {(row["class"], row["field"]): row for row in rows(capsys)}
    found = {key: row for key, row in found.items() if key[0].startswith("graphspec.")}
    # Classes that other tests make are known for as long as they live.
    classes = {c for c in config_classes([EngineConfig, EngineSpec]) if is_ours(c)}
    assert {speculator_config_class(m) for m in known_methods()} < classes
    for cls in classes:
        for name, policy in policies(cls).items():
            row = found[f"{cls.__module__}.{cls.__qualname__}", name]
            assert row["stage"] == (policy.stage.value if policy.stage else "unkeyed")
            assert (row["doc"], row["reason"]) == (policy.doc, policy.reason)
            assert bool(row["reason"]) is (policy.stage is None)
            assert row["type"]
    assert len(found) == sum(len(policies(cls)) for cls in classes)


def test_fields_as_a_table_says_why_a_field_is_in_no_key(capsys):
    """Every field's name and the reasons of the unkeyed ones, wrapped as they are."""
    code, out, _ = called(capsys, "fields")
    words = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert "fly_entropy_threshold" in words
    assert "Unkeyed: never holds a value." in words
    count = len(rows(capsys))
    assert f"{count} fields, " in out


def test_a_registered_method_joins_the_list(capsys):
    """Found by reflection as soon as it is registered."""

    @config_class
    class SeededSpeculatorConfig(SpeculatorConfig):
        base_method = "ngram"
        seed: int = keyed(Stage.CAPTURE, default=1, doc="Seed of the drafts.")

    with registered("seeded", SeededSpeculatorConfig):
        row = next(r for r in rows(capsys) if r["field"] == "seed")
    assert row["class"].endswith("SeededSpeculatorConfig")
    assert (row["type"], row["stage"]) == ("int", "capture")


def test_the_leftovers_of_slotted_classes_are_not_listed():
    """attrs makes a slotted class anew; the first one is a subclass too, and no class of ours."""
    classes = config_classes([SpeculatorConfig])
    assert len({(c.__module__, c.__qualname__) for c in classes}) == len(classes)
    assert all(is_config_class(c) for c in classes)


def test_an_inventory_holds_each_field_once():
    """However often a section stands in another."""
    found = [(row.cls, row.field) for row in inventory([EngineConfig, EngineSpec, EngineConfig])]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int or nothing"),
        (tuple[tuple[int, int], ...] | None, "list of list of 2: int, int or nothing"),
        (Stage, "compile, capture"),
        (EngineConfig | str, "EngineConfig or str"),
        (dict[str, int], "mapping"),
    ],
)
def test_types_are_told_in_words(annotation, text):
    """Enums by their values, lists by their items, sections by class."""
    assert type_text(annotation) == text
