"""The verifying store: a hit is what was asked for and trusted, and what was put can be read back."""

import hashlib

import attrs
import pytest

from graphspec.cache.entry import Seal, pack, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Lookup, Outcome, Stored
from graphspec.cache.tiers.memory import MemoryStore
from graphspec.cache.tiers.verifying import VerifyingStore
from support.entries import entry_of, key_of
from support.stores import MISS, PlainStore, SetAsideStore, ToldStore


class Signer:
    """Signs by a digest that everybody can make: enough to tell which bytes were signed."""

    def __init__(self, name):
        self.public_key = hashlib.sha256(name).digest()

    def sign(self, data):
        return hashlib.sha512(self.public_key + data).digest()


OURS, THEIRS = Signer(b"ours"), Signer(b"theirs")


def trust(seal):
    """Trusts what `OURS` signed."""
    if seal is None:
        return "not signed"
    if seal.public_key != OURS.public_key:
        return "signed by another"
    return "" if seal.signature == OURS.sign(seal.signed) else "a wrong signature"


def sealed(name="a", signer=OURS):
    """An entry as it comes from a file that `signer` signed."""
    return unpack(pack(entry_of(name), signer))


def holding(entry, key=None):
    """A store that gives `entry` for `key`, whatever is in it."""
    inner = SetAsideStore()
    inner.entries[(key or key_of("a")).text] = entry
    return inner


def test_what_was_asked_for_comes_through():
    """A right hit and a miss are the inner store's own."""
    store = VerifyingStore(holding(entry_of("a")))
    assert store.get(key_of("a")) == Lookup(outcome=Outcome.HIT, entry=entry_of("a"))
    assert store.look(key_of("a")) == store.get(key_of("a"))
    assert store.get(key_of("b")) == MISS


def test_the_entry_of_another_key_is_corrupt_and_set_aside():
    """A store that mixes keys up gives nobody a wrong library; what it has is set aside, with the reason."""
    inner = holding(entry_of("b"))
    store = VerifyingStore(inner)
    assert store.look(key_of("a")).outcome is Outcome.CORRUPT
    assert inner.aside == []
    found = store.get(key_of("a"))
    assert found == Lookup(outcome=Outcome.CORRUPT, reason="the entry is that of another key")
    assert inner.aside == [found.reason]
    assert store.get(key_of("a")) == MISS


def test_the_text_of_a_key_counts_and_not_its_digest():
    """A forced hash collision is found out."""
    twin = attrs.evolve(key_of("b"), digest=key_of("a").digest)
    found = VerifyingStore(holding(attrs.evolve(entry_of("b"), key=twin))).get(key_of("a"))
    assert found.outcome is Outcome.CORRUPT


def test_a_hit_without_an_entry_is_corrupt():
    """A store that breaks the protocol does not break its user."""
    found = VerifyingStore(ToldStore(Lookup(outcome=Outcome.HIT))).get(key_of("a"))
    assert found == Lookup(outcome=Outcome.CORRUPT, reason="a hit without an entry")


def test_a_trusted_seal_over_this_entry_is_a_hit():
    """The seal's signature is trusted and covers key, metadata and payload."""
    found = VerifyingStore(holding(sealed()), trust=trust).get(key_of("a"))
    assert found.entry == entry_of("a")


UNTRUSTED = {
    "no seal": (entry_of("a"), "not signed"),
    "another signer": (sealed(signer=THEIRS), "signed by another"),
    "other payload": (attrs.evolve(sealed(), payload=b"evil"), "of other bytes"),
    "other metadata": (attrs.evolve(sealed(), metadata={"unit": "evil"}), "of other bytes"),
    "metadata of no file": (attrs.evolve(sealed(), metadata={"x": object()}), "of other bytes"),
    "seal of another entry": (attrs.evolve(entry_of("a"), seal=sealed("b").seal), "of other bytes"),
    "signature over less": (
        attrs.evolve(
            sealed(),
            seal=Seal(public_key=OURS.public_key, signature=OURS.sign(b""), signed=b""),
        ),
        "of other bytes",
    ),
    "other signature": (
        attrs.evolve(sealed(), seal=attrs.evolve(sealed().seal, signature=bytes(63) + b"x")),
        "a wrong signature",
    ),
}


@pytest.mark.parametrize(("entry", "reason"), UNTRUSTED.values(), ids=UNTRUSTED)
def test_what_is_not_signed_as_it_must_be_is_corrupt(entry, reason):
    """Nobody gets an entry whose seal is missing, of somebody else, or of other bytes than these."""
    inner = holding(entry)
    found = VerifyingStore(inner, trust=trust).get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert reason in found.reason
    assert inner.aside == [found.reason]


def test_what_was_put_is_read_back(tmp_path):
    """A put is told as written when the very bytes can be got, and not a second time."""
    for inner in (MemoryStore(), DiskStore(str(tmp_path)), PlainStore()):
        store = VerifyingStore(inner)
        assert store.put(entry_of("a")) == Stored(written=True)
        assert store.put(entry_of("a")) == Stored(written=False)
        assert store.put(entry_of("a", b"other")) == Stored(written=False, differs=True)


def test_reading_back_changes_nothing():
    """What was put is looked at, so no level is filled and no file is marked as used."""

    class Looking(ToldStore):
        def look(self, key):
            return Lookup(outcome=Outcome.HIT, entry=entry_of("a"))

    inner = Looking(AssertionError("got"), Stored(written=True))
    assert VerifyingStore(inner).put(entry_of("a")) == Stored(written=True)


class LosingStore(SetAsideStore):
    """Says that it wrote, and has `lookup` afterwards."""

    def __init__(self, lookup):
        super().__init__()
        self.lookup = lookup

    def get(self, key):
        return self.lookup

    def put(self, entry):
        return Stored(written=True)


@pytest.mark.parametrize(
    ("lookup", "reason"),
    [
        (MISS, "it cannot be read back (miss): nothing is stored under this key"),
        (Lookup(outcome=Outcome.ERROR, reason="gone"), "it cannot be read back (error): gone"),
    ],
    ids=["miss", "error"],
)
def test_a_put_that_cannot_be_read_back_has_failed(lookup, reason):
    """A store that says written and has nothing is found out at the put and not at the next start."""
    inner = LosingStore(lookup)
    assert VerifyingStore(inner).put(entry_of("a")) == Stored(written=False, reason=reason)
    assert inner.aside == []


def test_what_is_corrupt_after_its_put_is_set_aside():
    """The place is free for the next put."""
    inner = LosingStore(Lookup(outcome=Outcome.CORRUPT, reason="flipped"))
    stored = VerifyingStore(inner).put(entry_of("a"))
    assert stored.failed
    assert inner.aside == ["flipped"]


def test_other_bytes_after_a_put_are_told_as_a_difference():
    """A store where the last writer wins, or that knows only that the name is taken, has other bytes in the end."""
    other = Lookup(outcome=Outcome.HIT, entry=entry_of("a", b"other"))
    for said in (Stored(written=True), Stored(written=False)):
        inner = ToldStore(other, said)
        assert VerifyingStore(inner).put(entry_of("a")) == Stored(written=False, differs=True)


def test_a_put_that_failed_is_not_read_back():
    """The inner store's reason is told as it is."""
    inner = ToldStore(AssertionError("asked"), Stored(written=False, reason="no room"))
    assert VerifyingStore(inner).put(entry_of("a")) == Stored(written=False, reason="no room")


def test_with_trust_a_put_must_be_readable_as_trusted(tmp_path):
    """A store that does not sign cannot be the one that trusted entries are read from."""
    plain = VerifyingStore(DiskStore(str(tmp_path / "plain")), trust=trust)
    stored = plain.put(entry_of("a"))
    assert stored.reason == "it cannot be read back (corrupt): not signed"
    signing = VerifyingStore(DiskStore(str(tmp_path / "signing"), signer=OURS), trust=trust)
    assert signing.put(entry_of("a")) == Stored(written=True)
    assert signing.get(key_of("a")).outcome is Outcome.HIT
