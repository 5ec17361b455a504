"""Eviction for any folder: the caps hold, nothing goes in vain, and grace gives way to the caps alone."""

import contextlib
import os
import tempfile

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.cache.folder.bounded import BoundedStore, packed_bytes
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, Total, is_young, plan_eviction, total_of, worth
from graphspec.cache.folder.listing import StoredFile, stored_files
from graphspec.cache.store import Outcome
from support.entries import entry_of, key_of

NOW = 1_000_000.0


FILES = st.builds(
    StoredFile,
    path=st.just(""),
    bytes=st.integers(0, 50),
    last_used=st.floats(0, 2 * NOW),
    compile_seconds=st.none() | st.floats(0, 1e3),
    quarantined=st.sampled_from((False, False, False, True)),
)
FOLDERS = st.lists(FILES, max_size=8).map(
    lambda found: [attrs.evolve(f, path=f"file {i}") for i, f in enumerate(found)]
)
"""Files of any size, cost and time of use, also of the future."""
LIMITS = st.builds(
    Caps,
    max_bytes=st.integers(0, 300),
    max_entries=st.integers(0, 12),
    grace_seconds=st.floats(0, NOW),
)
ROOM = st.builds(Total, bytes=st.integers(0, 60), files=st.integers(0, 2))
SPARE = st.sampled_from((0.0, 0.1, 0.5))


@given(FOLDERS, LIMITS, ROOM, SPARE)
def test_what_stays_fits_with_the_room_if_the_room_alone_does(found, caps, room, spare):
    """Also P16's bound: after a plan is carried out, the folder is within its caps."""
    removed = plan_eviction(found, caps, NOW, room=room, spare=spare)
    assert len(set(removed)) == len(removed)
    kept = [f for f in found if f not in removed]
    if room.within(caps):
        assert (total_of(kept) + room).within(caps)
    else:
        assert kept == []


@given(FOLDERS, LIMITS, ROOM, SPARE)
def test_nothing_goes_when_all_fits(found, caps, room, spare):
    """The spare share is freed only when a cap was reached."""
    if (total_of(found) + room).within(caps):
        assert plan_eviction(found, caps, NOW, room=room, spare=spare) == ()


@given(FOLDERS, LIMITS, ROOM)
def test_each_removal_was_needed(found, caps, room):
    """Without spare, all but the last one removed would still be too much."""
    removed = plan_eviction(found, caps, NOW, room=room)
    if removed:
        kept = [f for f in found if f not in removed[:-1]]
        assert not (total_of(kept) + room).within(caps)


@given(FOLDERS, LIMITS, ROOM, SPARE)
def test_within_its_grace_an_entry_goes_only_when_nothing_else_is_left_and_for_the_cap(
    found, caps, room, spare
):
    """Every older entry and all of the quarantine went before it, and the cap was still exceeded."""
    removed = plan_eviction(found, caps, NOW, room=room, spare=spare)
    for at, file in enumerate(removed):
        if is_young(file, caps, NOW):
            left = [f for f in found if f not in removed[:at]]
            assert all(is_young(f, caps, NOW) for f in left)
            assert not (total_of(left) + room).within(caps)


@given(FOLDERS, LIMITS, ROOM, SPARE)
def test_no_older_entry_that_stays_is_worth_less_than_one_that_went(found, caps, room, spare):
    """Among those beyond the grace period, worth decides and nothing else."""
    removed = plan_eviction(found, caps, NOW, room=room, spare=spare)
    older = [f for f in found if not f.quarantined and not is_young(f, caps, NOW)]
    kept = [worth(f, NOW) for f in older if f not in removed]
    gone = [worth(f, NOW) for f in older if f in removed]
    assert not kept or not gone or max(gone) <= min(kept)


@given(FOLDERS, LIMITS, ROOM, SPARE, st.randoms(use_true_random=False))
def test_the_order_in_which_files_are_found_does_not_matter(found, caps, room, spare, random):
    """Two processes that list a folder plan the same."""
    shuffled = list(found)
    random.shuffle(shuffled)
    plans = [plan_eviction(f, caps, NOW, room=room, spare=spare) for f in (found, shuffled)]
    assert plans[0] == plans[1]


@given(FOLDERS, LIMITS, ROOM, SPARE)
@example(
    [
        StoredFile(path="file 0", bytes=0, last_used=NOW + 1.0),
        StoredFile(path="file 1", bytes=0, last_used=NOW),
    ],
    Caps(max_bytes=0, max_entries=0, grace_seconds=0.0),
    Total(bytes=0, files=0),
    0.0,
)
def test_a_time_in_the_future_counts_as_now(found, caps, room, spare):
    """Clocks of other hosts may be ahead: the plan is that of files that were used now."""
    present = [attrs.evolve(f, last_used=min(f.last_used, NOW)) for f in found]
    plans = [plan_eviction(f, caps, NOW, room=room, spare=spare) for f in (found, present)]
    assert [f.path for f in plans[0]] == [f.path for f in plans[1]]


NAMES = "abcdef"
STEPS = st.lists(
    st.tuples(st.sampled_from(("put", "put", "get", "remove")), st.sampled_from(NAMES)),
    max_size=12,
)


@given(STEPS, st.integers(1, 4))
def test_a_bounded_store_is_within_its_caps_after_each_step(steps, most):
    """Puts, reads and removals by hand in any order: what was put last is there, and a get gives all of it or nothing."""
    size = packed_bytes(entry_of("a", bytes(100)))
    with tempfile.TemporaryDirectory() as root:
        store = BoundedStore(DiskStore(root), Caps(max_bytes=most * size))
        for action, name in steps:
            if action == "put":
                stored = store.put(entry_of(name, name.encode() * 100))
                assert not stored.failed
                assert store.get(key_of(name)).outcome is Outcome.HIT
            elif action == "get":
                lookup = store.get(key_of(name))
                assert lookup.outcome in (Outcome.HIT, Outcome.MISS)
                if lookup.entry is not None:
                    assert bytes(lookup.entry.payload) == name.encode() * 100
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(DiskStore(root).path_of(key_of(name)))
            assert total_of(list(stored_files(root))).bytes <= most * size
