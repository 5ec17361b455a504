"""F27: eight processes start on a cold key at once, and one of them compiles."""

import os

from graphspec.cache.folder.disk import DiskStore
from support.cold_start import cold_start


def test_F27_eight_processes_on_a_cold_key_compile_once(tmp_path):
    """All meet at the lock. The counter file has one line, seven get what the first has stored, all get equal bytes."""
    root = str(tmp_path / "cache")
    (started,) = cold_start(root, together=True)
    with open(os.path.join(root, "compiled"), encoding="utf-8") as counter:
        assert counter.read() == "round 0\n"
    assert sorted((s["outcome"], s["compiled"]) for s in started) == [
        *[("hit", False)] * 7,
        ("miss", True),
    ]
    assert len({s["library"] for s in started}) == 1
    assert started[0]["library"].startswith("library of round 0 by ")
    ((_, header, _),) = DiskStore(root).entries()
    assert header is not None
    assert header.metadata["unit"] == "round 0"
    assert os.listdir(os.path.join(root, "tmp")) == []
