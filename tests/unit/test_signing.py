"""Ed25519 keys: the files they are kept in, what they sign, and whom a cache trusts."""

import os
import stat
import sys

import attrs
import pytest

from graphspec.cache.entry import EntryCorruptError, Seal, pack, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.signing import PublicKey, SigningKey, read_public_keys, trust_in
from graphspec.cache.store import Outcome
from graphspec.errors import EnvironmentProblem, UntrustedError
from support.entries import entry_of, key_of

RFC_8410 = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
"""
RFC_8410_PUBLIC = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1"
RFC_8032_PRIVATE = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
RFC_8032_PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
RFC_8032_SIGNATURE = (
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
    "d25bf5f0595bbe24655141438e7a100b"
)


@pytest.fixture
def key():
    return SigningKey.generate()


def public(key, comment=""):
    return PublicKey(key.public_key, comment)


def written(path, text, mode=0o600):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def refused(call, *arguments):
    """The problems of a file that was refused, as (where, found)."""
    with pytest.raises(UntrustedError) as caught:
        call(*arguments)
    return [(p.where, p.found) for p in caught.value.problems]


def test_a_key_survives_its_file(key, tmp_path):
    """Saved and loaded, it has the same public key and makes the same signature of the same data."""
    path = str(tmp_path / "key.pem")
    key.save(path)
    again = SigningKey.load(path)
    assert again.public_key == key.public_key
    assert again.sign(b"data") == key.sign(b"data")
    assert len(key.sign(b"")) == 64
    assert SigningKey.generate().public_key != key.public_key


def test_a_key_file_is_for_its_owner_alone(key, tmp_path):
    """Its mode is 0600 whatever the umask allows, and it is plain PEM that other tools read."""
    path = tmp_path / "key.pem"
    before = os.umask(0)
    try:
        key.save(str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----")


def test_saving_replaces_no_file(key, tmp_path):
    """A key that is gone cannot be made again, so what is there stays."""
    path = written(tmp_path / "key.pem", RFC_8410)
    assert refused(key.save, path) == [(path, "a file that is there already")]
    assert (tmp_path / "key.pem").read_text() == RFC_8410
    nowhere = str(tmp_path / "no" / "key.pem")
    assert refused(key.save, nowhere) == [(nowhere, "No such file or directory")]


def test_keys_of_other_tools_are_read(tmp_path):
    """The example key of RFC 8410 has the public key that the RFC gives."""
    key = SigningKey.load(written(tmp_path / "key.pem", RFC_8410))
    assert key.public_key.hex() == RFC_8410_PUBLIC


def test_signatures_are_those_of_the_standard():
    """The first test vector of RFC 8032 comes out, and is trusted by its key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC_8032_PRIVATE)))
    assert key.public_key.hex() == RFC_8032_PUBLIC
    assert key.sign(b"").hex() == RFC_8032_SIGNATURE
    seal = Seal(public_key=key.public_key, signature=bytes.fromhex(RFC_8032_SIGNATURE), signed=b"")
    assert trust_in([public(key)])(seal) == ""


def test_a_private_key_is_never_shown(key, tmp_path):
    """Neither its repr nor an error about its file holds any of it."""
    path = written(tmp_path / "key.pem", RFC_8410.replace("-----END", "----END"))
    assert repr(key) == "SigningKey()"
    with pytest.raises(UntrustedError) as caught:
        SigningKey.load(path)
    assert "MC4C" not in str(caught.value)
    with pytest.raises(UntrustedError) as caught:
        read_public_keys(path)
    assert "MC4C" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "bits"),
    [
        (0o640, "mode 0640: the group can read"),
        (0o604, "mode 0604: others can read"),
        (0o622, "mode 0622: the group can write, others can write"),
        (0o611, "mode 0611: the group can execute, others can execute"),
        (0o644, "mode 0644: the group can read, others can read"),
    ],
    ids=["0640", "0604", "0622", "0611", "0644"],
)
def test_a_private_key_that_others_can_touch_is_refused(tmp_path, mode, bits):
    """The error names the mode and each bit that is too much, and how to take it away."""
    path = written(tmp_path / "key.pem", RFC_8410, mode)
    with pytest.raises(UntrustedError) as caught:
        SigningKey.load(path)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == (path, bits)
    assert problem.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666], ids=["0620", "0602", "0666"])
def test_a_trust_file_that_others_can_write_is_refused(key, tmp_path, mode):
    """Whoever can write it can make himself trusted. Reading is for everybody."""
    path = written(tmp_path / "trust", public(key).line, mode)
    ((where, found),) = refused(read_public_keys, path)
    assert where == path
    assert found.startswith(f"mode {mode:04o}: ")
    assert "can write" in found
    assert "can read" not in found
    os.chmod(path, 0o644)
    assert read_public_keys(path) == (public(key),)


BODY = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC"
BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
BAD_PRIVATE = {
    "empty": ("", 1, "no '-----BEGIN PRIVATE KEY-----'"),
    "text": ("hello\n", 1, "no '-----BEGIN PRIVATE KEY-----'"),
    "a public key": ("-----BEGIN PUBLIC KEY-----\n", 1, "no '-----BEGIN PRIVATE KEY-----'"),
    "a password": ("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", 1, "a key with a password"),
    "no end": (f"{BEGIN}\n{BODY}\n", 2, "the end of the file"),
    "more behind": (f"{BEGIN}\n{BODY}\n{END}\n\nmore\n", 4, "more lines"),
    "not base64": (f"{BEGIN}\n{BODY}\n***\n{END}\n", 3, "a line that is not base64"),
    "cut base64": (f"{BEGIN}\n{BODY[:-1]}\n{END}\n", 2, "a line that is not base64"),
    "not UTF-8": (f"{BEGIN}\n{BODY}\n".encode() + b"\xff\n", 3, "bytes that are not UTF-8"),
    "not DER": (f"{BEGIN}\naGVsbG8=\n{END}\n", 1, "no key"),
    "cut DER": (f"{BEGIN}\n{BODY[:-4]}\n{END}\n", 1, "no key"),
    "nothing inside": (f"{BEGIN}\n{END}\n", 1, "no key"),
}


@pytest.mark.parametrize("case", BAD_PRIVATE.values(), ids=BAD_PRIVATE)
def test_a_malformed_private_key_names_the_line(tmp_path, case):
    """Each way to spoil the file ends in an error with file and line."""
    text, line, found = case
    path = written(tmp_path / "key.pem", text)
    assert refused(SigningKey.load, path) == [(f"{path}:{line}", found)]


def test_a_private_key_of_another_kind_is_named(tmp_path):
    """A key that is whole and not Ed25519 is told from a broken one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    data = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = written(tmp_path / "key.pem", data)
    ((_, found),) = refused(SigningKey.load, path)
    assert found == "a key of another kind (X25519)"


@pytest.mark.parametrize("read", [SigningKey.load, read_public_keys], ids=["private", "trust"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path, read):
    """A folder, a pipe that nobody writes to, a name that leads nowhere, and a file without end."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name, found in {
        "pipe": "it is no regular file",
        "folder": "it is no regular file",
        "nothing": "No such file or directory",
    }.items():
        path = str(tmp_path / name)
        assert refused(read, path) == [(path, found)]
    large = written(tmp_path / "large", b"#" * ((1 << 20) + 1))
    assert refused(read, large) == [(large, "more than 1048576 bytes")]


def test_a_trust_file_has_a_key_a_line(tmp_path):
    """Comments and empty lines are passed over, spaces do not matter, and what follows a key says whose it is."""
    one, two = public(SigningKey.generate()), public(SigningKey.generate(), "the build machine")
    text = f"# who may write\n\n  {one.line}\n{two.line.replace(' ', '   ', 1)} \r\n"
    found = read_public_keys(written(tmp_path / "trust", text, 0o644))
    assert found == (one, two)
    assert [k.comment for k in found] == ["", "the build machine"]


def test_a_comment_cannot_make_a_second_line(key):
    """A line is one line, whatever the comment holds."""
    line = public(key, "me\ngraphspec-ed25519 AAAA").line
    assert line.splitlines() == [line]


WEAK = [
    "00" * 32,
    "01" + "00" * 31,
    "01" + "00" * 30 + "80",
    "ec" + "ff" * 30 + "7f",
    "ee" + "ff" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
GOOD = "GRvvRAlphM3+hUG6wWfcO5bIUIaqMLa2ywxcOK1wMWbh"
BAD_LINES = {
    "another word": ("ssh-ed25519 AAAA me", "a line that does not begin with graphspec-ed25519"),
    "no key": ("graphspec-ed25519", "a key of 0 bytes"),
    "not base64": ("graphspec-ed25519 **** me", "a key that is not base64"),
    "not ASCII": ("graphspec-ed25519 äöü me", "a key that is not base64"),
    "short": ("graphspec-ed25519 AAAA me", "a key of 3 bytes"),
    "long": (f"graphspec-ed25519 {'A' * 48}", "a key of 36 bytes"),
    "glued": ("graphspec-ed25519AAAA", "a line that does not begin with graphspec-ed25519"),
    **{
        f"weak {i}": (PublicKey(bytes.fromhex(text)).line, "a key that anybody can sign for")
        for i, text in enumerate(WEAK)
    },
}


@pytest.mark.parametrize("case", BAD_LINES.values(), ids=BAD_LINES)
def test_a_malformed_line_of_a_trust_file_is_named(key, tmp_path, case):
    """One bad line refuses the file: a key that is passed over would be missed later, without a word."""
    line, found = case
    path = written(tmp_path / "trust", f"{public(key).line}\n{line}\n", 0o644)
    ((where, said),) = refused(read_public_keys, path)
    assert where == f"{path}:2"
    assert said.startswith(found)


def test_a_key_has_one_spelling(tmp_path):
    """Base64 with bits that mean nothing would let one key stand there under several texts."""
    line = PublicKey(bytes.fromhex(RFC_8410_PUBLIC)).line
    assert line.endswith("ZuE=")
    path = written(tmp_path / "trust", line.replace("ZuE=", "ZuF="))
    ((_, found),) = refused(read_public_keys, path)
    assert found == "a key whose last character has bits that mean nothing"


def test_all_bad_lines_come_at_once(tmp_path):
    """Each with its number; a private key among them is called what it is."""
    path = written(tmp_path / "trust", f"one\n# two\n{BEGIN}\n")
    with pytest.raises(UntrustedError) as caught:
        read_public_keys(path)
    problems = caught.value.problems
    assert [p.where for p in problems] == [f"{path}:1", f"{path}:3"]
    assert problems[1].hint == "this is a private key: never hand it on"


@pytest.mark.parametrize("text", ["", "# nobody yet\n"], ids=["empty", "comments"])
def test_a_trust_file_without_keys_is_refused(tmp_path, text):
    """It would refuse everything; more likely something went wrong when it was written."""
    path = written(tmp_path / "trust", text)
    assert refused(read_public_keys, path) == [(path, "no key")]


def test_weak_keys_are_refused_for_a_reason():
    """A signature that nobody made verifies under the neutral point for every message: such a key is no key."""
    forged = Seal(
        public_key=bytes.fromhex(WEAK[1]),
        signature=bytes.fromhex(WEAK[1]) + bytes(32),
        signed=b"anything at all",
    )
    assert trust_in([PublicKey(forged.public_key)])(forged) == ""


def seal_of(data):
    seal = unpack(data).seal
    assert seal is not None
    return seal


def test_each_reason_to_distrust_has_its_own_sentence(key):
    """Unsigned, signed by a stranger, and a signature of other bytes are told apart; a trusted one is an empty text."""
    stranger = SigningKey.generate()
    trust = trust_in([public(key)])
    seal = seal_of(pack(entry_of("a"), key))
    assert trust(seal) == ""
    assert trust(None) == "the entry is not signed, and only signed ones are trusted here"
    assert trust(seal_of(pack(entry_of("a"), stranger))) == (
        f"the entry is signed by a key that is not trusted here: {public(stranger)}"
    )
    wrong = "the entry has a wrong signature: the key that it names did not sign these bytes"
    assert trust(attrs.evolve(seal, signed=seal.signed[:-1] + b"x")) == wrong
    assert trust(attrs.evolve(seal, signature=bytes(64))) == wrong
    assert trust_in([public(key)], "the bundle")(None).startswith("the bundle is not signed")


def test_no_bit_of_a_signature_is_free(key):
    """Every flipped bit of the signature, and of what was signed, is noticed."""
    trust, seal = trust_in([public(key)]), seal_of(pack(entry_of("a"), key))
    for name in ("signature", "signed"):
        value = getattr(seal, name)
        for at in range(len(value) * 8):
            flipped = bytearray(value)
            flipped[at // 8] ^= 1 << at % 8
            assert trust(attrs.evolve(seal, **{name: bytes(flipped)})) != ""


def test_a_stranger_cannot_borrow_a_name(key):
    """An entry that names a trusted key, with a signature that another made, is not trusted."""

    @attrs.frozen
    class Impostor:
        own: SigningKey
        public_key: bytes

        def sign(self, data):
            return self.own.sign(data)

    data = pack(entry_of("a"), Impostor(SigningKey.generate(), key.public_key))
    with pytest.raises(EntryCorruptError, match="wrong signature"):
        unpack(data, trust=trust_in([public(key)]))


def test_a_shared_store_takes_signed_entries_only(key, tmp_path):
    """What nobody trusted has signed is set aside with its sentence and never read; signed entries are hits."""
    root = str(tmp_path / "cache")
    shared = DiskStore(root, signer=key, trust=trust_in([public(key)]))
    assert shared.put(entry_of("mine")).written
    assert DiskStore(root).put(entry_of("unsigned")).written
    assert DiskStore(root, signer=SigningKey.generate()).put(entry_of("strange")).written
    assert shared.get(key_of("mine")).outcome is Outcome.HIT
    for name, why in {"unsigned": "is not signed", "strange": "signed by a key that is"}.items():
        lookup = shared.get(key_of(name))
        assert (lookup.outcome, lookup.entry) == (Outcome.CORRUPT, None)
        assert why in lookup.reason
        assert shared.get(key_of(name)).outcome is Outcome.MISS


def test_an_entry_keeps_its_seal_when_it_moves(key, tmp_path):
    """Read from one folder and put into another that does not sign, it is still signed by who made it."""
    first = DiskStore(str(tmp_path / "one"), signer=key)
    assert first.put(entry_of("a")).written
    moved = first.get(key_of("a")).entry
    second = DiskStore(str(tmp_path / "two"), trust=trust_in([public(key)]))
    assert second.put(moved).written
    assert second.get(key_of("a")).entry.seal.public_key == key.public_key


@pytest.mark.parametrize(
    "call",
    [SigningKey.generate, lambda: trust_in([PublicKey(bytes(32))])],
    ids=["sign", "trust"],
)
def test_without_the_package_the_error_says_what_to_install(monkeypatch, call):
    """The package is optional; who asks for signatures without it is told its name."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(EnvironmentProblem) as caught:
        call()
    assert caught.value.problems[0].hint == "pip install 'graphspec-engine[sign]'"
