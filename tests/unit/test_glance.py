"""A glance says of an entry what all of its header says, and of what is no entry nothing."""

import math
import os
import tempfile

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.cache.entry import pack
from graphspec.cache.folder import glance as module
from graphspec.cache.folder.glance import Glance, glance
from graphspec.keys.encoding import encode
from support.entries import METADATA, entry_of, fixed_part, with_header

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
METADATAS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("unit", "device", "reads", "other"), VALUES),
        "compile_seconds": st.floats() | st.integers() | VALUES,
        "provenance": st.dictionaries(st.sampled_from(("torch", "compiler", "é")), VALUES) | VALUES,
    },
)


def glanced(data):
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return glance(file.name)


def text(value):
    return value if isinstance(value, str) else None


def seconds(value):
    """A duration: a number of either kind, and no bool, that is finite and not negative."""
    try:
        number = float(value) if type(value) in (int, float) else -1.0
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


@given(METADATAS)
def test_a_glance_is_what_the_whole_header_says(metadata):
    """Whatever the metadata is, also with odd names and nested: texts, and a usable number of seconds."""
    found = glanced(pack(attrs.evolve(entry_of("a"), metadata=metadata)))
    inside = metadata.get("provenance")
    assert found is not None
    assert (found.unit, found.device) == (text(metadata.get("unit")), text(metadata.get("device")))
    assert found.torch == (text(inside.get("torch")) if isinstance(inside, dict) else None)
    assert found.compile_seconds == seconds(metadata.get("compile_seconds"))


def test_what_a_put_writes_is_not_decoded(monkeypatch):
    """The quick way is the one that is taken: for ten thousand entries it matters."""
    monkeypatch.setattr(module, "decode", None)
    metadata = {**METADATA, "reads": ["a.b"], "provenance": {"torch": "2.13.0", "compiler": "g++"}}
    data = pack(attrs.evolve(entry_of("a"), metadata=metadata))
    found = glanced(data)
    assert found == Glance(
        size=len(data),
        last_used=found.last_used,
        unit="toy",
        device="cpu",
        compile_seconds=1.5,
        torch="2.13.0",
        public_key=None,
    )


@pytest.mark.parametrize("absent", ["unit", "device", "compile_seconds", "provenance"])
def test_what_a_header_does_not_say_is_not_sought_by_decoding_it(absent, monkeypatch):
    """An entry may be stored without any of the facts, by a user's own Compiler for instance."""
    said = {**METADATA, "provenance": {"compiler": "g++"}}
    data = pack(
        attrs.evolve(entry_of("a"), metadata={n: v for n, v in said.items() if n != absent})
    )
    monkeypatch.setattr(module, "decode", None)
    assert glanced(data).torch is None


def test_a_long_header_is_read_to_its_end():
    """Keys with many fields are longer than what is read at once."""
    metadata = {**METADATA, "a": "x" * 40_000}
    assert glanced(pack(attrs.evolve(entry_of("a"), metadata=metadata))).unit == "toy"


def test_the_signer_is_told():
    """The public key as it stands in the file; whether it signed this is not looked at."""

    class Signer:
        public_key = b"k" * 32

        def sign(self, data):
            return b"s" * 64

    assert glanced(pack(entry_of("a"), Signer())).public_key == b"k" * 32


WHOLE = pack(entry_of("a"))
NO_ENTRIES = {
    "empty": b"",
    "short": WHOLE[:100],
    "cut": WHOLE[:-1],
    "longer": WHOLE + b"x",
    "header changed": WHOLE[:220] + bytes([WHOLE[220] ^ 1]) + WHOLE[221:],
    "other file": b"\x7fELF" * 200,
    "no mapping": with_header(encode("a")),
    "no metadata": with_header(encode({"key": b"a"})),
    "metadata of a wrong kind": with_header(encode({"key": b"a", "metadata": "x"})),
    "no encoding": with_header(b"d10:s3:key"),
    "huge promise": fixed_part(header=1 << 31, payload=1 << 60, digests=(b"", b"")),
}


@pytest.mark.parametrize("data", NO_ENTRIES.values(), ids=NO_ENTRIES)
def test_what_is_no_entry_gives_nothing(data):
    """Nothing is raised, whatever lies there."""
    assert glanced(data) is None


def test_what_is_no_file_gives_nothing(tmp_path):
    """A folder, a pipe that nobody writes to, a link that leads nowhere, and nothing at all."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "pipe", "link", "absent"):
        assert glance(str(tmp_path / name)) is None
