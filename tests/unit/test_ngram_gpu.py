"""The Triton n-gram kernels in Triton's interpreter: the same drafts as the host's rule."""

import json
import os
import random
import subprocess
import sys

import pytest
import torch

from graphspec.errors import KernelError
from graphspec.kernels import propose_ngram
from support.ngram import PEER, ROWS, fibonacci, ids, text
from support.processes import TESTS

pytest.importorskip("triton")

TIES = ("earliest", "latest")


def case(contexts, columns=None, sampled=None, offset=False, **settings):
    """One batch. `columns` is the width of the token matrix."""
    return {
        "contexts": contexts,
        "columns": columns or max(1, *map(len, contexts)),
        "sampled": sampled,
        "offset": offset,
        "settings": settings,
    }


def expected(case):
    """What `propose_ngram` gives for the rows, as the kernels lay it out."""
    s = case["settings"]
    width = s.get("width") or s["k"]
    lists = [
        propose_ngram(c, s["min_n"], s["max_n"], s["k"], s["max_model_len"], tie=s["tie"])
        if sampled
        else []
        for c, sampled in zip(
            case["contexts"], case["sampled"] or [1] * len(case["contexts"]), strict=True
        )
    ]
    return {
        "drafts": [d + [-1] * (width - len(d)) for d in lists],
        "counts": [len(d) for d in lists],
    }


def worked():
    """Every row of 8.2 and every case of the peer, a batch of one each."""
    for context, low, high, k, longest, _, _ in ROWS:
        yield [ids(context)], low, high, k, longest
    for c in PEER:
        yield [c["tokens"]], c["min_n"], c["max_n"], c["k"], c["max_model_len"]


def shapes():
    """Odd batches: lengths around the tile's, no rows' worth of tokens, odd addresses, a depth below the width."""
    draw = random.Random(7)
    for columns in (1, 2, 1023, 1024, 1025, 2049, 3000):
        lengths = sorted({0, 1, columns // 2, columns - 1, columns})
        contexts = [text(draw, n) for n in lengths]
        k = draw.randint(1, 9)
        yield {
            "contexts": contexts,
            "columns": columns,
            "offset": columns % 2 == 1,
            "sampled": [draw.randint(0, 2) for _ in lengths],
            "settings": {
                "min_n": draw.randint(1, 3),
                "max_n": draw.randint(3, 7),
                "k": k,
                "width": k + draw.choice([0, 3, 40]),
                "max_model_len": columns + draw.randint(-1, 12),
            },
        }
    yield case(
        [fibonacci(1500), [7] * 1500, [1, 2, 3] * 500], min_n=1, max_n=12, k=33, max_model_len=1600
    )


# B110: a full match, one with a single token left, and none. B111: contexts up to the limit.
B110 = case([[1, 2, 3, 4, 1, 2], [5, 5], [1, 2, 3]], min_n=1, max_n=2, k=3, max_model_len=99)
B111 = case([[1, 2] * 5 + [1] * n for n in range(1, 7)], min_n=1, max_n=3, k=4, max_model_len=16)

CASES = [
    {**c, "settings": {**c["settings"], "tie": tie}}
    for c in [
        *(
            case(rows, min_n=low, max_n=high, k=k, max_model_len=longest)
            for rows, low, high, k, longest in worked()
        ),
        *shapes(),
        B110,
        B111,
    ]
    for tie in TIES
]


@pytest.fixture(scope="module")
def interpreted():
    """All cases, run in one process whose Triton interprets."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "support.ngram_interpreted"],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TRITON_INTERPRET": "1"},
        cwd=TESTS.parent,
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_kernels_give_the_hosts_drafts(interpreted):
    """Worked examples, cases of the peer, and odd shapes, with either tie; -1 past each count."""
    wrong = [c for c, found in zip(CASES, interpreted, strict=True) if found != expected(c)]
    assert wrong == []


def test_the_cases_are_of_all_kinds(interpreted):
    """Rows with all drafts, some and none, ties that matter, and rows that sampled nothing are among them."""
    counts = {n for found in interpreted for n in found["counts"]}
    assert {0, 1, 2, 33} <= counts
    assert any(a != b for a, b in zip(interpreted[::2], interpreted[1::2], strict=True))
    assert any(0 in (c["sampled"] or ()) for c in CASES)


def test_b110_b111_counts_are_valid_drafts_within_the_limit(interpreted):
    """Theme K on the device: padding is no draft, and no draft lies past max_model_len."""
    b110, b111 = interpreted[-4], interpreted[-2]
    assert b110 == {
        "drafts": [[3, 4, 1], [5, -1, -1], [-1, -1, -1]],
        "counts": [3, 1, 0],
    }
    assert all(11 + n + count <= 16 for n, count in enumerate(b111["counts"]))
    assert b111["counts"][0] > 0
    assert b111["counts"][-1] == 0


def test_wrong_tensors_are_named_all_at_once():
    """Types, shapes and bounds, before any kernel runs."""
    from graphspec.kernels.ngram_gpu import propose_ngram_gpu

    with pytest.raises(KernelError) as caught:
        propose_ngram_gpu(
            torch.zeros((2, 3), dtype=torch.int64),
            torch.zeros(3, dtype=torch.int32),
            min_n=0,
            max_n=2,
            k=5,
            width=4,
            max_model_len=9,
        )
    assert len(caught.value.problems) == 4
    assert "found torch.int64 [2, 3]" in str(caught.value)


def test_variants_name_every_argument_of_their_kernel():
    """A signature, and what is constant, cover the parameters: nothing is left to be specialised at the first request."""
    from graphspec.kernels.ngram_gpu import variants

    for variant in variants():
        kernel = variant["kernel"]
        assert [*variant["signature"], *variant["constexprs"]] == list(kernel.arg_names)
        plain = [p for p in kernel.params if not p.is_constexpr]
        assert all(p.do_not_specialize and p.do_not_specialize_on_alignment for p in plain)
    assert len({v["name"] for v in variants()}) == len(variants()) == 4


@pytest.mark.deep
@pytest.mark.parametrize("target", [("cuda", 80), ("cuda", 90), ("cuda", 100), ("hip", "gfx942")])
def test_every_variant_compiles_for_devices_that_are_not_here(target):
    """Triton makes code for each of the four targets."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from graphspec.kernels.ngram_gpu import variants

    for variant in variants():
        signature = variant["signature"] | dict.fromkeys(variant["constexprs"], "constexpr")
        source = ASTSource(variant["kernel"], signature, variant["constexprs"])
        made = triton.compile(source, target=GPUTarget(*target, 64 if target[0] == "hip" else 32))
        assert made.asm["cubin" if target[0] == "cuda" else "hsaco"]
