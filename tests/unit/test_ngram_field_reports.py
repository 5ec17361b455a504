"""Field reports, theme K: what went wrong in other engines' n-gram drafting, and what happens here."""

import json

import numpy as np
import pytest

from graphspec.engine.sampling import SamplingParams
from graphspec.engine.stop import FinishReason, TextSoFar, apply_stops
from graphspec.kernels import NgramIndex, propose_ngram
from support.processes import run_python

BACKENDS = ["numba", "python"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_b110_padding_is_never_counted_as_a_draft(backend):
    """vLLM PR 4724: a full match, a partial one and none give 3, 1 and 0 drafts, together 4 and not 9."""
    contexts = [[1, 2, 3, 4, 1, 2], [5, 5], [1, 2, 3]]
    index = NgramIndex(min_n=1, max_n=2, k=3, max_model_len=99, slots=3, backend=backend)
    starts = np.cumsum([0, *map(len, contexts)])
    drafts, counts = index.step(np.arange(3), np.concatenate(contexts), starts, 3)
    assert counts.tolist() == [3, 1, 0]
    assert drafts.tolist() == [[3, 4, 1], [5, -1, -1], [-1, -1, -1]]
    assert [index.propose(slot=i) for i in range(3)] == [[3, 4, 1], [5], []]


@pytest.mark.parametrize("backend", BACKENDS)
def test_b111_no_draft_lies_past_the_length_limit(backend):
    """vLLM 42533: limit 16, k 4, contexts of 11 to 16 tokens: drafts up to the limit, none beyond, never negative."""
    index = NgramIndex(min_n=1, max_n=3, k=4, max_model_len=16, backend=backend)
    index.append([1, 2] * 5)
    counts = []
    for length in range(11, 17):
        index.append([1 + (length + 1) % 2])
        drafts = index.propose()
        text = ([1, 2] * 8)[:length]
        assert drafts == propose_ngram(text, 1, 3, 4, 16)
        counts.append(len(drafts))
    assert counts == [4, 4, 3, 2, 1, 0]


def ending(accepted, *, room=99, end_of_text=(), **params):
    return apply_stops(
        accepted,
        room=room,
        params=SamplingParams(**params),
        end_of_text=frozenset(end_of_text),
        text=TextSoFar(),
        decode=None,
    )


def test_b111_few_tokens_left_cut_what_was_accepted():
    """transformers PR 47195: two new tokens with k 3. Drafts that were right and do not fit are not kept."""
    found = ending([5, 6, 7, 8], room=2)
    assert (found.kept, found.reason) == (2, FinishReason.LENGTH)


def test_b112_end_of_text_ends_a_request_inside_its_accepted_drafts():
    """transformers 47912: of 4, end, 5, all accepted, the output ends at the end token."""
    found = ending([4, 2, 5, 6], end_of_text=[2])
    assert (found.kept, found.reason) == (2, FinishReason.STOP)


def test_b112_no_end_of_text_is_no_error():
    """A model without an end token goes on."""
    found = ending([4, 2, 5, 6])
    assert (found.kept, found.reason) == (4, None)


@pytest.mark.parametrize("end", [2, 5])
def test_b112_each_of_two_end_tokens_ends(end):
    """Both ids of a model with two of them stop."""
    found = ending([4, end, 9], end_of_text=[2, 5])
    assert (found.kept, found.reason) == (2, FinishReason.STOP)


RANKS = """
import hashlib, json, os, random
from concurrent.futures import ThreadPoolExecutor

from graphspec.kernels import NgramIndex, warm_ngram
from support.ngram import text

warm_ngram()
draw = random.Random(115)
contexts = [text(draw, draw.randint(1, 60)) for _ in range(1000)]


def drafts_of(part):
    index = NgramIndex(min_n=1, max_n=4, k=5, max_model_len=70, slots=len(part))
    for slot, context in enumerate(part):
        index.append(context, slot)
    return [index.propose(slot=slot) for slot in range(len(part))]


def digests():
    found = set()
    for threads in (1, 8):
        size = -(-1000 // threads)
        parts = [contexts[i : i + size] for i in range(0, 1000, size)]
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(20):
                drafts = [d for part in pool.map(drafts_of, parts) for d in part]
                found.add(hashlib.sha256(json.dumps(drafts).encode()).hexdigest())
    return sorted(found)


pipes = []
for _ in range(4):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(digests()).encode())
        os._exit(0)
    os.close(write)
    pipes.append(read)
print(json.dumps([json.loads(os.read(read, 10000)) for read in pipes]))
"""


@pytest.mark.deep
def test_b115_every_rank_drafts_the_same():
    """vLLM PR 31288: four processes, 1 and 8 threads, 20 times, with hashes seeded anew each time: one answer."""
    found = json.loads(run_python(RANKS))
    assert len(found) == 4
    assert all(len(digests) == 1 for digests in found)
    assert len({digests[0] for digests in found}) == 1
