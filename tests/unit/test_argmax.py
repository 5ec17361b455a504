"""The largest logit over ranks is that of the whole row, by two numbers a row."""

import json

import pytest
import torch

from graphspec.errors import KernelError
from graphspec.kernels.argmax import EXACT_IDS, Shard, best_of, local_best
from support.specs import run_python


def shards(vocab, ranks, **options):
    width = -(-vocab // ranks)
    return width, [Shard(first=r * width, vocab_size=vocab, **options) for r in range(ranks)]


def over_ranks(logits, vocab, ranks, **options):
    """As ranks would, with padding columns that would win if they counted."""
    width, parts = shards(vocab, ranks, **options)
    padding = torch.full((len(logits), width * ranks - vocab), 1e9)
    whole = torch.cat([logits, padding], dim=1)
    found = [local_best(whole[:, p.first : p.first + width], p) for p in parts]
    return best_of(torch.stack(found))


@pytest.mark.parametrize("vocab", [1, 2, 5, 127, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_equals_the_argmax_of_the_whole_row(vocab, ranks):
    """Also with many ties, and with ranks that hold nothing but padding."""
    made = torch.Generator().manual_seed(vocab * ranks)
    for logits in (
        torch.randn(6, vocab, generator=made),
        torch.randint(0, 3, (6, vocab), generator=made).float(),
        torch.full((2, vocab), -torch.inf),
    ):
        assert torch.equal(over_ranks(logits, vocab, ranks), logits.argmax(-1))


def test_scale_and_soft_cap_do_not_move_the_largest():
    """Unless the cap makes two equal, and then the first wins, as where logits are used whole."""
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0], [500.0, 900.0, 0.0, 0.0]])
    found = over_ranks(logits, 4, 2, scale=0.5, soft_cap=30.0)
    whole = (0.5 * 30.0 * torch.tanh(logits / 30.0)).argmax(-1)
    assert found.tolist() == whole.tolist() == [1, 0]


def test_nan_never_wins():
    """A draft is an id of the vocabulary whatever the logits are."""
    logits = torch.tensor([[torch.nan, 1.0, 2.0, torch.nan], [torch.nan] * 4])
    assert over_ranks(logits, 4, 2).tolist() == [2, 0]


def test_half_precision_is_compared_as_it_is():
    """bfloat16 and float16 are float32 exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        logits = torch.randn(8, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert torch.equal(over_ranks(logits.float(), 40, 2), logits.argmax(-1))


def test_the_last_id_that_float32_counts_is_exact():
    """Ids travel as float32."""
    shard = Shard(first=EXACT_IDS - 3, vocab_size=EXACT_IDS)
    best = local_best(torch.tensor([[0.0, 0.0, 1.0]]), shard)
    assert best_of(best[None]).tolist() == [EXACT_IDS - 1]
    assert int(torch.tensor(EXACT_IDS + 1, dtype=torch.float32)) != EXACT_IDS + 1


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"scale": 0.0}, "scale"),
        ({"scale": -1.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"soft_cap": 0.0}, "soft_cap"),
        ({"vocab_size": EXACT_IDS + 1}, "vocab_size"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_what_would_give_a_wrong_token_is_refused(options, found):
    """A scale that is not positive turns the order round; larger ids are not exact."""
    with pytest.raises(KernelError, match=found):
        Shard(**{"first": 0, "vocab_size": 10, **options})


TWO_RANKS = """
import json, os, sys, tempfile
import torch, torch.distributed as dist
from graphspec.kernels.argmax import Shard, argmax_over_ranks
store = os.path.join(tempfile.mkdtemp(), "store")
reader, writer = os.pipe()
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
logits = torch.randn(5, 101, generator=torch.Generator().manual_seed(7)).round(decimals=1)
mine = torch.cat([logits, torch.full((5, 1), 1e9)], dim=1)[:, rank * 51 : rank * 51 + 51]
found = argmax_over_ranks(mine, Shard(first=rank * 51, vocab_size=101)).tolist()
dist.destroy_process_group()
if not child:
    os.write(writer, json.dumps(found).encode())
    os._exit(0)
_, status = os.waitpid(child, 0)
other = json.loads(os.read(reader, 10000))
print(json.dumps([status, found, other, logits.argmax(-1).tolist()]))
"""


def test_two_processes_agree_on_the_whole_rows_argmax():
    """Over gloo: each has half of the columns, one of them a padding column that is larger than all."""
    done = run_python(TWO_RANKS)
    assert done.returncode == 0, done.stderr
    status, found, other, whole = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    assert found == other == whole
