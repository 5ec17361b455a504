"""The n-gram index: the rule's worked examples, what a step returns and refuses, its memory, and no compile after warm-up."""

import mmap

import numpy as np
import pytest

from graphspec.errors import EnvironmentProblem, KernelError
from graphspec.kernels import NgramIndex, ngram_warm, propose_ngram, warm_ngram
from support.ngram import PEER, ROWS, brute_force, fibonacci, ids
from support.processes import run_python

BACKENDS = ["numba", "python"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def index_of(tokens, min_n, max_n, k, longest, **more):
    """An index of one slot that was given `tokens` one by one, as far as they fit."""
    index = NgramIndex(min_n=min_n, max_n=max_n, k=k, max_model_len=longest, **more)
    for token in tokens[:longest]:
        index.append([token])
    return index


@each_backend
@pytest.mark.parametrize(("context", "low", "high", "k", "longest", "earliest", "latest"), ROWS)
def test_rows_of_reference_8_2(context, low, high, k, longest, earliest, latest, backend):
    """Both columns of the table, token by token."""
    settings = {"backend": backend}
    assert index_of(ids(context), low, high, k, longest, **settings).propose() == ids(earliest)
    settings["tie"] = "latest"
    assert index_of(ids(context), low, high, k, longest, **settings).propose() == ids(latest)


@each_backend
@pytest.mark.parametrize("case", PEER, ids=lambda c: f"{c['kind']}-{len(c['tokens'])}")
def test_vllm_computes_the_same(case, backend):
    """What vLLM 0.33.0's CPU function proposes, from a prompt that comes at once."""
    index = NgramIndex(
        min_n=case["min_n"],
        max_n=case["max_n"],
        k=case["k"],
        max_model_len=case["max_model_len"],
        backend=backend,
    )
    if len(case["tokens"]) > case["max_model_len"]:
        with pytest.raises(KernelError, match="wanted at most max_model_len"):
            index.append(case["tokens"])
    else:
        index.append(case["tokens"])
    assert index.propose() == case["drafts"]
    if "drafts_new_runner" in case:
        latest = NgramIndex(
            min_n=case["min_n"],
            max_n=case["max_n"],
            k=case["k"],
            max_model_len=len(case["tokens"]) + case["k"],
            tie="latest",
            backend=backend,
        )
        latest.append(case["tokens"])
        found = latest.propose()
        fill = [case["tokens"][-1]] * (case["k"] - len(found))
        assert found + fill == case["drafts_new_runner"]


@each_backend
def test_what_comes_back_after_a_truncation_is_the_earliest_place_again(backend):
    """An n-gram whose earliest place was cut off, and that came again elsewhere, has its new place."""
    index = index_of([1, 2, 9, 5, 6], 2, 2, 4, 100, backend=backend)
    index.truncate(2)
    index.append([7, 5, 6, 3, 9, 5, 6])
    assert index.propose() == [3, 9, 5, 6]
    index.truncate(8)
    index.append([1, 2])
    assert index.propose() == [7, 5, 6, 3]


@each_backend
@pytest.mark.parametrize("tie", ["earliest", "latest"])
def test_fibonacci_words_cut_and_grown_equal_the_scan(backend, tie):
    """A word whose prefixes have the most borders, cut back and grown again at every length of a Fibonacci number."""
    word = fibonacci(300)
    index = NgramIndex(min_n=1, max_n=9, k=5, max_model_len=400, tie=tie, backend=backend)
    for cut in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233):
        index.append(word[index.length() :])
        assert index.propose() == propose_ngram(word, 1, 9, 5, 400, tie=tie)
        index.truncate(len(word) - cut)
        assert index.propose() == propose_ngram(word[:-cut], 1, 9, 5, 400, tie=tie)


@each_backend
@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_long_period_with_a_break_equals_the_brute_force(backend, period):
    """Texts that repeat, and change once, at every prefix."""
    text = [i % period for i in range(90)]
    text[60] = 9
    index = NgramIndex(min_n=2, max_n=6, k=3, max_model_len=95, backend=backend)
    for end, token in enumerate(text, 1):
        index.append([token])
        assert index.propose() == brute_force(text[:end], 2, 6, 3, 95)


def arrays(*values):
    return [np.array(v, np.int32) for v in values]


@each_backend
def test_rows_are_named_by_slot_and_nothing_stale_is_left(backend):
    """Results lie at the slot of the request, others have count 0, and past a count there is -1 and no older draft."""
    index = NgramIndex(min_n=1, max_n=2, k=4, max_model_len=50, slots=5, backend=backend)
    index.step(*arrays([3, 1], [1, 2, 3, 4, 1, 2, 5, 5, 5, 5], [0, 6, 10]), 4)
    assert index.drafts.tolist()[3] == [3, 4, 1, 2]
    assert index.counts.tolist() == [0, 2, 0, 4, 0]
    drafts, counts = index.step(*arrays([3], [1], [0, 1]), 2)
    assert (drafts.tolist()[3], counts.tolist()) == ([2, 3, -1, -1], [0, 0, 0, 2, 0])
    assert drafts.tolist()[1] == [-1] * 4


@each_backend
def test_a_step_cuts_before_it_appends(backend):
    """`keep` takes rejected drafts away, and the drafts are those of the text that remains."""
    index = NgramIndex(min_n=2, max_n=2, k=3, max_model_len=50, slots=2, backend=backend)
    index.append([1, 2, 3, 1, 9, 9], slot=1)
    drafts, counts = index.step(*arrays([1], [2], [0, 1]), 3, keep=np.array([4]))
    assert (index.length(1), counts.tolist(), drafts[1].tolist()) == (5, [0, 3], [3, 1, 2])
    assert index.propose(slot=1) == [3, 1, 2]


@each_backend
def test_a_row_that_sampled_nothing_takes_no_part(backend):
    """A request in prefill or one that was only rolled back gets no drafts in a step, whatever it matches."""
    index = NgramIndex(min_n=1, max_n=1, k=2, max_model_len=50, slots=2, backend=backend)
    index.append([1, 2, 1, 2])
    _, counts = index.step(*arrays([0, 1], [7], [0, 0, 1]), 2, keep=np.array([3, 0]))
    assert counts.tolist() == [0, 0]
    assert index.propose() == [2, 1]


@each_backend
def test_an_empty_step_is_no_error(backend):
    """No participants: all counts are 0."""
    index = NgramIndex(min_n=1, max_n=1, k=2, max_model_len=50, backend=backend)
    _, counts = index.step(*arrays([], [], [0]), 2)
    assert counts.tolist() == [0]


@each_backend
def test_a_reset_slot_knows_nothing_of_its_last_request(backend):
    """The successor of a request never gets drafts from it, even after a long one."""
    index = NgramIndex(min_n=1, max_n=3, k=4, max_model_len=2000, backend=backend)
    index.append([i % 50 for i in range(1500)])
    index.reset()
    assert (index.length(), index.propose()) == (0, [])
    index.append([7])
    assert index.propose() == []
    index.append([8, 7])
    assert index.propose() == [8, 7]


@each_backend
def test_a_step_may_ask_for_less_than_k_and_not_for_more(backend):
    """The depth of a step comes from the schedule; the buffers were made for the largest."""
    index = index_of([1, 2, 1, 2], 1, 2, 2, 50, backend=backend)
    assert (index.propose(1), index.propose(0)) == ([1], [])
    with pytest.raises(KernelError, match="found 3; wanted 0 to 2"):
        index.propose(3)
    with pytest.raises(KernelError, match="largest k of the schedule"):
        index.step(*arrays([0], [1], [0, 1]), 3)


WRONG = [
    (([0, 4], [1, 1], [0, 1, 2]), None, "row 1 of 2: found slot 4; wanted 0 to 3"),
    (([-1], [1], [0, 1]), None, "found slot -1"),
    (([2, 2], [1, 1], [0, 1, 2]), None, "slot 2 a second time"),
    (([2], [1, -1], [0, 2]), None, "new token 1: found -1"),
    (([2], [1] * 6, [0, 6]), None, r"6 more for slot 2, which has 5 tokens; wanted at most max_"),
    (([2], [1], [0, 1]), [6], "keep 6 of slot 2, which has 5 tokens"),
    (([2], [1], [0, 1]), [-1], "keep -1 of"),
    (([2], [1], [0, 1]), [1, 1], "found 2 lengths; wanted one for each of 1 rows"),
    (([2], [1], [0, 2]), None, r"found \[0, 2\] for 1 rows and 1 tokens"),
    (([2, 1], [1, 1], [0, 3, 2]), None, "never go down"),
    (([2], [1], [0]), None, r"found \[0\] for 1 rows"),
]


@each_backend
@pytest.mark.parametrize(("given", "keep", "message"), WRONG)
def test_a_wrong_step_changes_nothing(given, keep, message, backend):
    """An error names row, slot and values, and the requests of the good rows are as they were."""
    index = NgramIndex(min_n=1, max_n=1, k=2, max_model_len=10, slots=4, backend=backend)
    index.append([1, 2, 3, 1, 2], slot=2)
    with pytest.raises(KernelError, match=message):
        index.step(*arrays(*given), 2, keep=None if keep is None else np.array(keep))
    assert [index.length(s) for s in range(4)] == [0, 0, 5, 0]
    assert index.propose(slot=2) == [3, 1]


@each_backend
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2**31], r"tokens\[1\]: found 2147483648; wanted an integer of 32 bits"),
        ([2**70], "found 1180591620717411303424"),
        ([3, -1], "new token 1: found -1; wanted an id of 0 or more"),
        (np.array([1.5]), "float64"),
        (np.array([[1, 2]], np.int32), "one dimension"),
        (np.array([True]), "bool"),
    ],
)
def test_what_is_no_id_is_refused_and_never_wrapped(tokens, message, backend):
    """Ids past 32 bits would become others, and -1 is what pads drafts."""
    index = NgramIndex(min_n=1, max_n=1, k=2, max_model_len=10, backend=backend)
    index.append([2**31 - 1, 0])
    with pytest.raises(KernelError, match=message):
        index.append(tokens)
    assert index.length() == 2


@each_backend
def test_any_layout_of_integers_is_taken_without_another_compile(backend):
    """Wider, strided and read-only arrays give what a list gives."""
    wide = np.arange(6, dtype=np.int64) % 2
    fixed = np.array([0, 1, 0, 1, 0, 1], np.int32)
    fixed.flags.writeable = False
    for given in (wide, np.repeat(fixed, 2)[::2], fixed, tuple(wide.tolist())):
        index = NgramIndex(min_n=1, max_n=4, k=2, max_model_len=10, backend=backend)
        index.append(given)
        assert index.propose() == [0, 1]


def test_bounds_are_checked_all_at_once():
    """Every argument that makes no sense is in one error."""
    with pytest.raises(KernelError) as caught:
        NgramIndex(min_n=3, max_n=2, k=-1, max_model_len=0, slots=0, tie="first", backend="c")
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize("tie", ["earliest", "latest"])
def test_colliding_hashes_cost_time_and_never_a_draft(tie, monkeypatch):
    """With a multiplier that maps most n-grams to a handful of places, drafts are those of the scan."""
    from graphspec.kernels import ngram_compiled as compiled

    text = [i * i % 37 for i in range(900)]
    index = NgramIndex(min_n=2, max_n=4, k=4, max_model_len=1000, tie=tie, backend="numba")
    # The multiplier becomes 1: the hash is the sum of the ids, and its upper bits are all 0.
    index._rows.state[:, compiled.SEED] = 0
    index._rows.state[:, compiled.RESEEDED] = compiled.RESEEDS
    for end in range(100, 900, 100):
        index.append(text[end - 100 : end])
        assert index.propose() == propose_ngram(text[:end], 2, 4, 4, 1000, tie=tie)
        index.truncate(end - 30)
        assert index.propose() == propose_ngram(text[: end - 30], 2, 4, 4, 1000, tie=tie)
        index.append(text[end - 30 : end])
    assert index._rows.state[0, compiled.SEED] == 0


def test_a_text_written_to_collide_meets_another_multiplier():
    """A probe that grew too long makes the slot draw a new multiplier, so that the bound on probes holds again."""
    from graphspec.kernels import ngram_compiled as compiled

    # All different, so that every token needs a place of its own, and all in the same corner of the table.
    text = list(range(4 * compiled.PROBES))
    index = NgramIndex(min_n=1, max_n=1, k=4, max_model_len=len(text), backend="numba")
    index._rows.state[:, compiled.SEED] = 0
    index.append(text)
    assert index._rows.state[0, compiled.SEED] != 0
    assert 1 <= index._rows.state[0, compiled.RESEEDED] <= compiled.RESEEDS
    assert index.propose() == []
    index.reset()
    assert index._rows.state[0, compiled.RESEEDED] == 0


def test_a_window_and_a_length_that_leave_no_room_for_a_hash_equal_the_scan():
    """An entry is a place and an n and nothing else: every entry of a probe is compared, and drafts are those of the scan."""
    settings = {"min_n": 1, "max_n": 255, "k": 6, "max_model_len": 2**24 - 1}
    index, made = NgramIndex(**settings, backend="numba"), []
    for end in range(40, 800, 40):
        made += [i * i % 7 for i in range(end - 40, end - 9)] + made[:9]
        index.append(made[index.length() :])
        assert index.propose() == propose_ngram(made, 1, 255, 6, 2**24 - 1)
    index.truncate(500)
    assert index.propose() == propose_ngram(made[:500], 1, 255, 6, 2**24 - 1)
    with pytest.raises(KernelError, match=r"max_model_len\): found 16777216; wanted 1 to 16777215"):
        NgramIndex(**{**settings, "max_model_len": 2**24})


def nested(length):
    """A text whose matches end at every length of a window, at other places each: a search looks up one n after the other."""
    out = []
    while len(out) < length:
        for n in range(1, 9):
            out += [100 + len(out), *range(9 - n, 9)]
    return out[:length]


@each_backend
@pytest.mark.parametrize("tie", ["earliest", "latest"])
def test_searches_that_go_on_at_later_places_equal_the_scan(tie, backend):
    """Each longer match begins where the shorter one has no more; cut back and grown again at every length."""
    text = nested(150)
    index = NgramIndex(min_n=1, max_n=7, k=3, max_model_len=160, tie=tie, backend=backend)
    for end in range(1, 150):
        index.append(text[index.length() : end + 1])
        assert index.propose() == propose_ngram(text[: end + 1], 1, 7, 3, 160, tie=tie)
        index.truncate(end)
        assert index.propose() == propose_ngram(text[:end], 1, 7, 3, 160, tie=tie)
        if end % 10 == 9:
            index.truncate(end - 8)
            assert index.propose() == propose_ngram(text[: end - 8], 1, 7, 3, 160, tie=tie)


def resident():
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("tie", ["earliest", "latest"])
def test_memory_is_what_is_stated_and_follows_use(tie):
    """Resident bytes a token, at the worst length (one past a power of two), stay within the statement and near it."""
    slots, length = 32, 2**14 + 1
    tokens = (np.arange(length) * 7919 % 32000).astype(np.int32)
    settings = {"min_n": 2, "max_n": 4, "k": 4, "slots": slots, "tie": tie, "backend": "numba"}
    index = NgramIndex(max_model_len=2**17, **settings)
    index.append(tokens[:9])
    index.reset()
    before = resident()
    for slot in range(slots):
        index.append(tokens, slot)
    measured = (resident() - before) / slots / length
    assert 0.7 * index.bytes_per_token < measured < 1.05 * index.bytes_per_token


def test_after_warming_no_call_compiles_or_adds_a_variant(shared_cache):
    """The first step of a warmed process compiles nothing: numba's own events say so, and so does the count."""
    warm_ngram()
    printed = run_python(
        """
        import os
        import numpy as np
        from numba.core import event
        from graphspec.cache.opened import open_cache
        from graphspec.capture.host_kernels import keep_host_code_in
        from graphspec.config.cache import CacheConfig
        from graphspec.kernels import NgramIndex, warm_ngram
        from graphspec.kernels.ngram_compiled import CODE, advance
        keep_host_code_in(open_cache(CacheConfig(), os.environ["SHARED"]))
        warmed = warm_ngram()
        with event.install_recorder("numba:compile") as after:
            for tie in ("earliest", "latest"):
                index = NgramIndex(min_n=1, max_n=3, k=4, max_model_len=99, slots=3, tie=tie)
                index.append([1, 2, 1, 2])
                index.step(np.array([0, 2]), np.array([1, 5, 6]), np.array([0, 1, 3]), 2, keep=np.array([3, 0]))
                index.propose()
                index.reset()
        print(warmed.backend, warmed.specialisations, len(advance.signatures), len(after.buffer))
        for call in (advance, CODE.ready()["advance"]):
            try:
                call(1, 2)
            except TypeError:
                print("refused")
        """,
        SHARED=str(shared_cache),
    )
    assert printed.splitlines() == ["numba 1 0 0", "refused", "refused"]


def test_a_second_warm_up_compiles_nothing():
    """It returns what the first one found."""
    assert warm_ngram() is warm_ngram()


def test_without_numba_the_index_says_that_it_runs_in_python(monkeypatch):
    """The fallback is stated, with what to install, and asking for numba by name is an error."""
    monkeypatch.setattr(ngram_warm, "_done", [])
    monkeypatch.setattr(ngram_warm.importlib.util, "find_spec", lambda name: None)
    index = index_of([1, 2, 1, 2], 1, 2, 2, 50)
    assert index.backend == "python"
    assert "pip install 'graphspec-engine[ngram]'" in index.backend_reason
    assert index.propose() == [1, 2]
    with pytest.raises(EnvironmentProblem, match="no numba"):
        index_of([], 1, 2, 2, 50, backend="numba")
