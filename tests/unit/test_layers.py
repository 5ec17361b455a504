"""The wrappers of stores: memory, read-only, layered and verifying, each promise alone."""

import os

import attrs
import pytest

from graphspec.cache.abilities import is_writable, look
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Lookup, Outcome, Stored, set_aside
from graphspec.cache.tiers.background import BackgroundStore
from graphspec.cache.tiers.counting import Counters, CountingStore
from graphspec.cache.tiers.layers import LayeredStore, LevelProblem, ProblemLog, ReadOnlyStore
from graphspec.cache.tiers.memory import MemoryStore, hold
from graphspec.cache.tiers.verifying import VerifyingStore
from graphspec.errors import CacheError, KeyFactorError
from support.entries import METADATA, entry_of, key_of
from support.stores import PlainStore, SetAsideStore, ToldStore

CORRUPT = Lookup(outcome=Outcome.CORRUPT, reason="bad bytes")
ERROR = Lookup(outcome=Outcome.ERROR, reason="no answer")


def payload(store, name="a"):
    """The payload that a get finds, or None."""
    entry = store.get(key_of(name)).entry
    return None if entry is None else bytes(entry.payload)


def damage(disk, name="a"):
    """Cuts off the last byte of an entry's file."""
    path = disk.path_of(key_of(name))
    os.truncate(path, os.stat(path).st_size - 1)


@pytest.fixture
def disk(tmp_path):
    return DiskStore(str(tmp_path / "disk"))


def test_memory_gives_back_what_was_put():
    """Before a put it is a miss with a reason, afterwards a hit with an equal entry."""
    store = MemoryStore()
    assert store.get(key_of("a")) == Lookup(
        outcome=Outcome.MISS, reason="nothing is stored under this key"
    )
    assert store.put(entry_of("a")) == Stored(written=True)
    assert store.get(key_of("a")) == Lookup(outcome=Outcome.HIT, entry=entry_of("a"))
    assert store.look(key_of("a")) == store.get(key_of("a"))
    assert store.get(key_of("b")).outcome is Outcome.MISS


def test_the_first_writer_of_memory_wins_and_a_difference_is_told():
    """Equal bytes are there already; other bytes are told as differing; the first ones stay."""
    store = MemoryStore()
    store.put(entry_of("a", b"first"))
    assert store.put(entry_of("a", b"first")) == Stored(written=False)
    assert store.put(entry_of("a", b"other")) == Stored(written=False, differs=True)
    assert payload(store) == b"first"


def test_memory_tells_keys_of_one_digest_apart():
    """The key's text is the identity, so a hash collision costs nothing here."""
    other = attrs.evolve(key_of("b"), digest=key_of("a").digest)
    store = MemoryStore()
    store.put(entry_of("a"))
    assert store.get(other).outcome is Outcome.MISS
    assert store.put(attrs.evolve(entry_of("b", b"b"), key=other)).written
    assert payload(store) == b"library bytes"
    assert bytes(store.get(other).entry.payload) == b"b"


def test_nobody_can_change_what_memory_holds():
    """Metadata and payload are copied when they are given and when they are handed out."""
    store = MemoryStore()
    metadata, data = {"reads": ["x"], "shape": (1, 2)}, bytearray(b"bytes")
    store.put(attrs.evolve(entry_of("a"), metadata=metadata, payload=memoryview(data)))
    metadata["reads"].append("y")
    data[0] = 0
    store.get(key_of("a")).entry.metadata["reads"].append("z")
    found = store.get(key_of("a")).entry
    assert found.metadata == {"reads": ["x"], "shape": (1, 2)}
    assert found.payload == b"bytes"


def test_memory_holds_at_most_the_bytes_it_may():
    """The entries that were used longest ago make room; one that is larger than all of it is refused with a reason."""
    size = hold(entry_of("a")).bytes
    store = MemoryStore(max_bytes=2 * size)
    for name in "ab":
        store.put(entry_of(name))
    assert store.bytes == 2 * size
    store.get(key_of("a"))
    store.look(key_of("b"))
    assert store.put(entry_of("c")).written
    assert [payload(store, name) is not None for name in "abc"] == [True, False, True]
    assert store.bytes == 2 * size
    refused = store.put(entry_of("d", bytes(2 * size)))
    assert refused.failed
    assert f"{store.bytes}" in refused.reason
    assert payload(store, "a") is not None


def test_room_is_free_again_when_memory_sets_an_entry_aside():
    """What was set aside is gone, takes no bytes, and can be put anew; twice is as good as once."""
    store = MemoryStore()
    store.put(entry_of("a", b"bad"))
    for _ in range(2):
        store.set_aside(key_of("a"), "no use")
        assert (store.bytes, payload(store)) == (0, None)
    assert store.put(entry_of("a", b"good")).written
    assert payload(store) == b"good"


@pytest.mark.parametrize("make", [MemoryStore, lambda: BackgroundStore(MemoryStore())])
def test_what_no_file_could_hold_is_refused_when_it_is_put(make):
    """Metadata without an encoding is the caller's mistake, and told where it was made, as a disk store does."""
    with pytest.raises(KeyFactorError):
        make().put(attrs.evolve(entry_of("a"), metadata={"x": object()}))


def test_the_size_in_memory_is_about_that_of_the_file(disk):
    """Bounds in bytes mean the same for memory as for a disk: 1 percent or 100 bytes."""
    entry = entry_of("a", os.urandom(5000))
    disk.put(entry)
    size = os.stat(disk.path_of(entry.key)).st_size
    assert abs(hold(entry).bytes - size) < 100


def test_a_read_only_store_takes_nothing(disk, tmp_path):
    """Puts are refused with a reason, and say so by `writable`; hits come through; no file or folder is made."""
    store = ReadOnlyStore(disk)
    stored = store.put(entry_of("a"))
    assert stored.failed
    assert stored.reason == "the store is read-only"
    assert payload(store) is None
    assert list(tmp_path.iterdir()) == []
    disk.put(entry_of("a"))
    assert payload(store) == b"library bytes"
    assert (is_writable(store), is_writable(disk)) == (False, True)


def test_a_get_of_a_read_only_store_changes_nothing(disk, tmp_path):
    """A corrupt entry is told each time and left in place, and a hit does not mark a file as used."""
    for name in "ab":
        disk.put(entry_of(name))
        os.utime(disk.path_of(key_of(name)), (0, 0))
    damage(disk, "a")
    os.utime(disk.path_of(key_of("a")), (0, 0))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    store = ReadOnlyStore(disk)
    set_aside(store, key_of("b"), "no use")
    for _ in range(2):
        assert store.get(key_of("a")).outcome is Outcome.CORRUPT
        assert store.get(key_of("b")).outcome is Outcome.HIT
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_read_only_store_around_wrappers_changes_nothing_either(tmp_path):
    """The look goes through every wrapper: no back-fill, nothing set aside, whatever lies between."""
    upper, lower = (DiskStore(str(tmp_path / name)) for name in ("upper", "lower"))
    upper.put(entry_of("a"))
    lower.put(entry_of("b"))
    damage(upper)
    layers = LayeredStore([BackgroundStore(upper), lower])
    store = ReadOnlyStore(CountingStore(VerifyingStore(layers), Counters()))
    before = sorted(tmp_path.rglob("*"))
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    assert payload(store, "b") == b"library bytes"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_without_a_look_is_asked_by_get():
    """Two methods make a store: wrappers do without what it does not offer."""
    inner = PlainStore()
    inner.put(entry_of("a"))
    assert look(inner, key_of("a")).entry == entry_of("a")
    assert ReadOnlyStore(inner).get(key_of("a")).entry == entry_of("a")
    for wrapper in (
        LayeredStore([inner]),
        VerifyingStore(inner),
        CountingStore(inner, Counters()),
        BackgroundStore(inner),
    ):
        wrapper.set_aside(key_of("a"), "no use")
        assert wrapper.look(key_of("a")).outcome is Outcome.HIT
        assert is_writable(wrapper)


WRAPPERS = {
    "layered": lambda inner: LayeredStore([inner]),
    "verifying": VerifyingStore,
    "counting": lambda inner: CountingStore(inner, Counters()),
    "background": BackgroundStore,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_forward_what_the_inner_store_offers(wrap):
    """What is set aside through a wrapper is set aside inside, and a store that refuses puts says so through it."""
    inner = SetAsideStore()
    wrapper = wrap(inner)
    wrapper.put(entry_of("a"))
    wrapper.set_aside(key_of("a"), "no use")
    assert wrapper.get(key_of("a")).outcome is Outcome.MISS
    if isinstance(wrapper, BackgroundStore):
        wrapper.flush()
    assert inner.aside == ["no use"]
    refusing = wrap(ReadOnlyStore(inner))
    assert not is_writable(refusing)
    assert refusing.put(entry_of("a")).failed


def test_the_first_level_with_a_hit_wins():
    """Levels are asked in order, and those below a hit are not asked."""
    upper, lower = PlainStore(), PlainStore()
    upper.put(entry_of("a", b"upper"))
    lower.put(entry_of("a", b"lower"))
    lower.asked.clear()
    assert payload(LayeredStore([upper, lower])) == b"upper"
    assert lower.asked == []


def test_a_hit_below_fills_the_levels_above():
    """The next lookup ends at the first level; read-only levels are passed over."""
    levels = [MemoryStore(), ReadOnlyStore(PlainStore()), PlainStore(), PlainStore()]
    levels[3].put(entry_of("a"))
    told = []
    assert payload(LayeredStore(levels, listener=told.append)) == b"library bytes"
    assert told == []
    assert [payload(level) is not None for level in levels] == [True, False, True, True]


def test_a_look_fills_nothing():
    """It finds what get would find and leaves the levels above as they are."""
    upper, lower = MemoryStore(), MemoryStore()
    lower.put(entry_of("a"))
    store = LayeredStore([upper, lower])
    assert store.look(key_of("a")).entry == entry_of("a")
    assert store.look(key_of("b")).outcome is Outcome.MISS
    assert payload(upper) is None


def test_a_corrupt_level_falls_through_and_heals(tmp_path):
    """The entry comes from below; the bad file is in the quarantine and a good one in its place; the listener knows."""
    upper, lower = (DiskStore(str(tmp_path / name)) for name in ("upper", "lower"))
    told = []
    store = LayeredStore([upper, lower], listener=told.append)
    store.put(entry_of("a"))
    damage(upper)
    assert payload(store) == b"library bytes"
    assert payload(upper) == b"library bytes"
    assert len(list((tmp_path / "upper" / "quarantine").glob("*.reason"))) == 1
    assert [(p.level, p.action, p.key) for p in told] == [(1, "get", key_of("a"))]
    assert told[0].reason.startswith("corrupt: truncated")


def test_a_failed_back_fill_is_a_hit_all_the_same():
    """The full level is told to the listener, and the entry comes from below."""
    told = []
    lower = PlainStore()
    lower.put(entry_of("a"))
    store = LayeredStore([ToldStore(ERROR), lower], listener=told.append)
    assert payload(store) == b"library bytes"
    assert [(p.action, p.reason) for p in told] == [
        ("get", "error: no answer"),
        ("back-fill", "no room"),
    ]


def lookup(outcome):
    return Lookup(outcome=outcome, reason=f"it is {outcome.value}")


TELLING = [
    (["miss", "corrupt"], "corrupt"),
    (["error", "corrupt", "miss"], "corrupt"),
    (["miss", "error", "stale"], "error"),
    (["stale", "miss"], "stale"),
    (["disabled", "locked_out"], "locked_out"),
    (["disabled", "bypass", "miss"], "miss"),
    (["disabled", "bypass"], "bypass"),
    (["disabled", "disabled"], "disabled"),
]


@pytest.mark.parametrize(("outcomes", "most"), TELLING)
def test_when_all_levels_miss_the_most_telling_outcome_is_told(outcomes, most):
    """Corrupt before error, before stale, before locked out, before miss, before bypass, before disabled."""
    levels = [ToldStore(lookup(Outcome(outcome))) for outcome in outcomes]
    store = LayeredStore(levels)
    number = outcomes.index(most) + 1
    where = "" if most == "miss" else f"level {number}: "
    for found in (store.get(key_of("a")), store.look(key_of("a"))):
        assert found == Lookup(outcome=Outcome(most), reason=f"{where}it is {most}")


def test_every_outcome_but_a_hit_has_its_place_among_levels():
    """A new outcome without a place would make a get raise."""
    for outcome in set(Outcome) - {Outcome.HIT}:
        store = LayeredStore([ToldStore(lookup(outcome)), ToldStore(lookup(outcome))])
        assert store.get(key_of("a")).outcome is outcome


def test_the_outcome_of_a_single_level_is_its_own():
    """No level is named where there is one only."""
    assert LayeredStore([ToldStore(CORRUPT)]).get(key_of("a")) == CORRUPT


def test_a_put_goes_to_every_writable_level():
    """All of them have the entry afterwards; one that is read-only is not asked."""
    levels = [MemoryStore(), ReadOnlyStore(MemoryStore()), MemoryStore()]
    assert LayeredStore(levels).put(entry_of("a")) == Stored(written=True)
    assert [payload(level) is not None for level in levels] == [True, False, True]


FULL = Stored(written=False, reason="no room")
PUTS = [
    ([Stored(written=True), FULL], Stored(written=True, reason="level 2: no room")),
    ([Stored(written=False), FULL], Stored(written=False)),
    ([Stored(written=False), Stored(written=True)], Stored(written=False)),
    ([FULL, Stored(written=True)], FULL),
    ([FULL, FULL], Stored(written=False, reason="no room; level 2: no room")),
    (
        [Stored(written=True), Stored(written=False, differs=True)],
        Stored(written=True, differs=True),
    ),
]


@pytest.mark.parametrize(("answers", "wanted"), PUTS)
def test_the_result_of_a_put_is_that_of_the_first_writable_level(answers, wanted):
    """A later failure is in the reason where that does not make it a failure; a difference anywhere is told."""
    told = []
    levels = [ReadOnlyStore(PlainStore()), *(ToldStore(stored=answer) for answer in answers)]
    stored = LayeredStore(levels[1:], listener=told.append).put(entry_of("a"))
    assert stored == wanted
    assert [p.level for p in told] == [2] * answers[1].failed
    behind = LayeredStore(levels, listener=told.append).put(entry_of("a"))
    assert behind == attrs.evolve(wanted, reason=wanted.reason.replace("level 2", "level 3"))


def test_a_put_that_no_level_takes_says_so():
    """A store of read-only levels refuses, by its result and by `writable`."""
    store = LayeredStore([ReadOnlyStore(PlainStore())])
    assert store.put(entry_of("a")).failed
    assert not is_writable(store)


def test_setting_aside_takes_an_entry_out_of_all_levels():
    """A bad entry that was filled in above comes back from no level."""
    levels = [MemoryStore(), PlainStore(), SetAsideStore()]
    levels[2].put(entry_of("a"))
    store = LayeredStore(levels)
    store.get(key_of("a"))
    levels[1].entries.clear()
    store.set_aside(key_of("a"), "no use")
    assert store.get(key_of("a")).outcome is Outcome.MISS


def test_a_store_of_no_levels_cannot_be_made():
    """It is a mistake of the program, told at once."""
    with pytest.raises(CacheError, match="one store or more"):
        LayeredStore([])


def test_problems_of_levels_are_logged_unless_somebody_listens(caplog):
    """A warning for the first of a level and an action, debug for those after it; the key's digest and not its text."""
    caplog.set_level("DEBUG", logger="graphspec.cache")
    log = ProblemLog()
    for level, action in ((2, "put"), (2, "put"), (2, "get"), (3, "put"), (2, "put")):
        log(LevelProblem(level=level, action=action, key=key_of("a"), reason="no room"))
    record, *_ = caplog.records
    assert [r.levelname for r in caplog.records] == [
        "WARNING",
        "DEBUG",
        "WARNING",
        "WARNING",
        "DEBUG",
    ]
    assert record.name == "graphspec.cache"
    assert (record.event, record.key, record.level) == ("cache_level", key_of("a").digest, 2)
    assert METADATA["unit"] not in record.getMessage()
