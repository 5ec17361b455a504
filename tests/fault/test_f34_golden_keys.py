"""F34, golden keys: the key text and hashes of some reference specs, byte for byte.

Entries on disks were stored under these bytes. After a wanted change, raise `graphspec.keys.encoding.EPOCH` and
write the new file with ``PYTHONPATH=.:tests python tests/fault/test_f34_golden_keys.py``.
"""

import json
import tempfile
from pathlib import Path

import pytest

from graphspec.fields import Stage
from graphspec.keys.encoding import EPOCH, decode
from support.golden_specs import NAMES, golden_spec

FILE = Path(__file__).parents[1] / "golden" / "keys.json"


def keys_of(name, folder):
    """Hash and key text of both stages, as the file keeps them."""
    spec = golden_spec(name, folder)
    return {
        stage.value: {"hash": spec.compute_hash(stage), "text": spec.key_text(stage).decode()}
        for stage in Stage
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stage", [s.value for s in Stage])
def test_F34_keys_do_not_drift(tmp_path, name, stage):
    """The key text and the hash are those that earlier versions stored entries under."""
    golden = json.loads(FILE.read_text())
    now, then = keys_of(name, tmp_path)[stage], golden["specs"][name][stage]
    advice = (
        "keys drifted, so stored entries would be missed or, worse, still found: "
        "raise graphspec.keys.encoding.EPOCH, then write tests/golden/keys.json anew"
    )
    if now["text"] != then["text"]:
        pytest.fail(f"{advice}\nthen: {then['text']}\nnow:  {now['text']}")
    assert now["hash"] == then["hash"], advice


def test_F34_the_file_is_of_this_epoch():
    """After EPOCH is raised, the golden file is written anew and reviewed like an API."""
    golden = json.loads(FILE.read_text())
    assert golden["epoch"] == EPOCH, "write tests/golden/keys.json anew; its docstring says how"
    assert tuple(golden["specs"]) == NAMES


def test_F34_stored_key_text_stays_readable():
    """What was stored decodes, and says which epoch and stage it belongs to."""
    golden = json.loads(FILE.read_text())
    hashes = set()
    for spec in golden["specs"].values():
        for stage, key in spec.items():
            text = decode(key["text"].encode())
            assert (text["epoch"], text["stage"]) == (golden["epoch"], stage)
            hashes.add(key["hash"])
    assert len(hashes) == 2 * len(NAMES)


def write():
    """Writes the golden file from the code as it is."""
    with tempfile.TemporaryDirectory() as folder:
        specs = {name: keys_of(name, Path(folder)) for name in NAMES}
    FILE.write_text(json.dumps({"epoch": EPOCH, "specs": specs}, indent=1) + "\n")


if __name__ == "__main__":
    write()
