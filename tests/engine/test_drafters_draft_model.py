"""Draft models: the target's own first layers, and a model with another vocabulary."""

import json

import pytest
import torch

from graphspec.config.engine import EngineConfig
from graphspec.engine.drafters.early_exit import write_early_exit
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.vocabulary import tables_of
from graphspec.errors import SpecError
from graphspec.speculators.vocabulary import map_vocabularies
from support.checkpoints import write_checkpoint
from support.drafters import BLOCK, TARGET, K, Stage, context_of, engine_spec, play


def spec_of(target, draft, **section):
    return EngineConfig.from_dict(
        {
            "model": {"source": str(target), "max_model_len": 160},
            "scheduler": {"max_num_seqs": 6, "max_num_batched_tokens": 192},
            "kv_cache": {"block_size": BLOCK, "num_blocks": 256},
            "speculative": {
                "method": "draft_model",
                "model": str(draft),
                "num_speculative_tokens": K,
                **section,
            },
        }
    ).resolve()


@pytest.fixture
def target(tmp_path):
    return write_checkpoint(tmp_path / "target", TARGET)


def test_an_early_exit_drafts_as_the_model_that_ends_there(tmp_path, target):
    """Its weights are the target's, not copies, and its drafts those of a checkpoint with these layers alone."""
    folder = write_early_exit(str(tmp_path / "exit"), str(target), 2)
    made = Stage(spec_of(target, folder), seed=1)
    # Weights of test checkpoints depend on their names alone: this one holds the target's first layers.
    whole = write_checkpoint(tmp_path / "whole", {**TARGET, "num_hidden_layers": 2})
    reference = Stage(spec_of(target, whole), seed=1)
    for stage in (made, reference):
        play(stage, 8)
    assert [a.drafts for a in made.actors] == [a.drafts for a in reference.actors]
    assert made.proposed > 10
    context = context_of(made.spec)
    tensors = make_drafter(context).static_tensors()
    shared = context.weights.by_name
    for name in ("layers.1.w_qkv", "embedding"):
        assert tensors[name].data_ptr() == shared[name].data_ptr()
    assert tensors["cache"].shape[0] == 2


def test_an_early_exit_of_another_model_is_refused(tmp_path, target):
    """The message names both checkpoints."""
    other = write_checkpoint(tmp_path / "other", TARGET)
    folder = write_early_exit(str(tmp_path / "exit"), str(other), 2)
    with pytest.raises(SpecError, match=r"an early exit of .*other"):
        make_drafter(context_of(spec_of(target, folder)))


@pytest.mark.parametrize("layers", [0, 4, 5])
def test_an_early_exit_is_shorter_than_its_target(tmp_path, target, layers):
    """All layers would be the target itself, and none no model."""
    with pytest.raises(SpecError, match="fewer than the 4 layers"):
        write_early_exit(str(tmp_path / "exit"), str(target), layers)


def test_drafts_stop_at_the_drafts_own_length(tmp_path):
    """Beyond the positions that the draft model is good for, a request gets no drafts."""
    spec = engine_spec(tmp_path, "draft_model", options={"max_position_embeddings": 40})
    assert spec.max_draft_len == 40
    stage = Stage(spec, seed=1)
    stage.enter(34)
    lengths = []
    for _ in range(8):
        stage.step(stage.actors, K, accept=0)
        lengths.append(len(stage.actors[0].drafts))
    assert lengths == [4, 4, 3, 2, 1, 0, 0, 0]


def tokenizer(folder, words, config):
    """A tokenizer of whole words, in the order of their ids."""
    from tokenizers import Tokenizer, models

    vocabulary = {word: at for at, word in enumerate(words)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    kept = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**kept, **config}))


@pytest.fixture
def mapped(tmp_path, target):
    """A target of 96 words, and a draft of 64 of which 40 are the target's, with SentencePiece's marker for a space."""
    draft = write_checkpoint(
        tmp_path / "draft", {**TARGET, "num_hidden_layers": 1, "vocab_size": 64}
    )
    words = ["<unk>", *(f"Ġw{at}" for at in range(1, 96))]
    tokenizer(target, words, {})
    others = ["<unk>", *(f"only{at}" for at in range(1, 25)), *(f"▁w{at}" for at in range(3, 42))]
    tokenizer(draft, others, {"unk_token_id": 0})
    return spec_of(target, draft, use_heterogeneous_vocab=True)


def test_a_draft_with_another_vocabulary_reads_and_proposes_the_targets_ids(mapped):
    """The context is mapped to its ids and its drafts back: only words that both have are ever proposed."""
    stage = Stage(mapped, seed=1)
    play(stage, 20)
    assert stage.proposed > 20
    assert stage.compared > 10
    common = {0, *range(3, 42)}
    assert {t for a in stage.actors for t in a.drafts} <= common


def test_its_drafts_are_those_of_the_draft_alone_on_mapped_text(mapped, tmp_path):
    """Against the same model run on the draft's ids without any mapping, with other words left out of its choice."""
    stage = Stage(mapped, seed=1)
    actor = stage.enter(10)
    stage.step([actor], K)
    tables = stage.drafter.drafter._network._tables
    # The same weights as a target-sized vocabulary of its own, on the text in its ids.
    alone = Stage(spec_of(tmp_path / "draft", tmp_path / "draft"), seed=1)
    network = alone.drafter.drafter._network
    allowed = tables.to_target >= 0
    plain = network.logits
    network.logits = lambda scored: plain(scored).masked_fill(~allowed, float("-inf"))
    other = alone.enter(1)
    other.tokens = tables.to_draft[torch.tensor(actor.tokens[:10])].tolist()
    other.prompt = 10
    alone._compare = lambda *given: None
    alone.random.randrange = lambda n: int(tables.to_draft[actor.tokens[10]])
    alone.step([other], K)
    assert len(actor.drafts) == K
    assert list(actor.drafts) == tables.to_target[list(other.drafts)].tolist()


def test_unknown_words_become_the_drafts_unknown_token_even_if_that_is_0():
    """Id 0 is a token like another."""
    made = map_vocabularies(
        {"<unk>": 0, "a": 1}, {"b": 0, "a": 1}, draft_vocab_size=2, target_vocab_size=2
    )
    tables = tables_of(made, 0, "cpu")
    assert tables.to_draft.tolist() == [0, 1]
    assert tables.to_target.tolist() == [-1, 1]
