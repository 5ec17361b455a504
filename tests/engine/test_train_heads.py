"""Trained heads are those that the engine runs: same passes, same tensors; training learns, and goes on where it stopped."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from graphspec.engine.weights import load_weights
from support.drafters import K, Stage, engine_spec

BENCH = Path(__file__).parents[2] / "bench"
WIDTH, TOKENS = 32, 96


@pytest.fixture(scope="module")
def bench():
    """The scripts' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        names = ("head_models", "head_prompts", "head_text", "head_training")
        yield SimpleNamespace(**{n: importlib.import_module(n) for n in names})


def uneven(seed):
    """Sizes of dimensions as those of a model's states: very different."""
    made = torch.Generator().manual_seed(seed)
    return torch.rand(WIDTH, generator=made) * 4 + 0.1


def eagle_head(bench, seed=1):
    shape = bench.head_models.Shape(
        width=WIDTH, inner=64, heads=4, kv_heads=2, head_dim=8, eps=1e-5, theta=10000.0
    )
    return bench.head_models.EagleHead(shape, uneven(2), 0.7, seed)


def medusa_heads(bench):
    heads = bench.head_models.MedusaHeads(K, 1, uneven(3))
    made = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.2)
    return heads


def stored(weights, folder):
    save_file(
        {n: t.detach().contiguous() for n, t in weights.items()}, folder / "model.safetensors"
    )


def drafts_of(spec, temperature=0.0):
    """One request's drafts after its prompt, with the request and its stage."""
    stage, seen = Stage(spec, seed=5), []
    actor = stage.enter(12, temperature)
    propose = stage.drafter.propose
    stage.drafter.propose = lambda step: seen.append(propose(step)) or seen[-1]
    stage.step([actor], K)
    ((proposal,),) = seen
    return proposal, actor, stage


def test_passes_in_training_are_the_passes_in_the_engine(tmp_path, bench):
    """Each draft's logits: what reads drafts' keys, and which states, is the same for every one of them."""
    spec = engine_spec(tmp_path, "eagle", draft_sample_method="probabilistic")
    head = eagle_head(bench)
    stored(head.weights(), tmp_path / "head")
    proposal, actor, stage = drafts_of(spec, temperature=1.0)
    weights = load_weights(spec.model, spec.device)
    last = actor.computed - 1
    tokens = [*actor.tokens, *proposal.tokens][1 : last + K + 1]
    states = stage.states.of(actor.tokens, range(last + 1))[:, :WIDTH]
    states = torch.cat((states, torch.zeros(K - 1, WIDTH)))
    with torch.no_grad():
        outputs = head(weights.embedding[tokens][None], states[None], K)
    assert len(proposal.logits) == K
    for at, output in enumerate(outputs):
        wanted = output[0, last + at] @ weights.w_head.t()
        torch.testing.assert_close(proposal.logits[at], wanted, atol=1e-3, rtol=1e-3)


def test_medusa_heads_on_the_targets_matrix_draft_as_in_training(tmp_path, bench):
    """Read by their names, and equal to heads that have the whole product as matrices of their own."""
    options = {"original_lm_head": True}
    spec = engine_spec(tmp_path / "mapped", "medusa", options=options)
    heads = medusa_heads(bench)
    stored(heads.weights(), tmp_path / "mapped" / "head")
    proposal, actor, stage = drafts_of(spec)
    matrix = load_weights(spec.model, spec.device).w_head
    state = stage.states.of(actor.tokens, [actor.computed - 1])[:, :WIDTH]
    with torch.no_grad():
        wanted = [int((x @ matrix.t()).argmax()) for x in heads(state)]
    assert list(proposal.tokens) == wanted
    assert len(set(wanted)) > 1

    spec = engine_spec(tmp_path / "own", "medusa")
    weights = heads.weights()
    for n in range(K):
        weights[f"{n}.1.weight"] = matrix @ weights.pop(f"{n}.map.weight")
    stored(weights, tmp_path / "own" / "head")
    assert drafts_of(spec)[0].tokens == proposal.tokens


def test_heads_without_a_map_are_scored_as_they_are(tmp_path, bench):
    """A checkpoint with the target's matrix need not have maps."""
    drafts = []
    for name in ("without", "identity"):
        spec = engine_spec(tmp_path / name, "medusa", options={"original_lm_head": True})
        weights = medusa_heads(bench).weights()
        for n in range(K):
            del weights[f"{n}.map.weight"]
            if name == "identity":
                weights[f"{n}.map.weight"] = torch.eye(WIDTH)
        stored(weights, tmp_path / name / "head")
        drafts.append(drafts_of(spec)[0].tokens)
    assert drafts[0] == drafts[1]


def matrix():
    """What scores states: each token's row, against dimensions of very different size."""
    made = torch.Generator().manual_seed(11)
    return torch.randn((TOKENS, WIDTH), generator=made) / uneven(2)


def texts(bench, count, seed):
    """Texts in which each token says the next one, as the states do."""
    following = (5 * torch.arange(TOKENS) + 3) % TOKENS
    table = 0.5 * matrix()[following] * uneven(2) ** 2
    made = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        tokens = [int(torch.randint(TOKENS, (), generator=made))]
        while len(tokens) < 24:
            tokens.append((5 * tokens[-1] + 3) % TOKENS)
        states = table[tokens[:-1]]
        found.append(
            bench.head_text.Text(tokens=torch.tensor(tokens), prompt=4, states=states, kind="edit")
        )
    return found


def tasks(bench):
    train, held = texts(bench, 24, 1), texts(bench, 8, 2)
    training, models = bench.head_training, bench.head_models
    return {
        "eagle": training.EagleTask(eagle_head(bench), matrix(), matrix(), train, held, 3, 1),
        "medusa": training.MedusaTask(
            models.MedusaHeads(3, 1, uneven(2)), matrix(), train, held, 1
        ),
    }


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_training_learns_what_can_be_learned(bench, name):
    """From chance to most drafts right, on texts that it did not see."""
    task = tasks(bench)[name]
    before = task.score()
    optimizer = torch.optim.AdamW(task.head.parameters(), lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        task.loss(step, step / 60).backward()
        optimizer.step()
    after = task.score()
    assert before.first < 0.4
    assert after.first > 0.8
    assert after.length > max(2.5, before.length)


def test_training_that_is_stopped_goes_on(tmp_path, bench):
    """The state is stored when a run is stopped; the next one counts its steps and seconds, and best weights are kept."""
    train, kept = bench.head_training.train, []
    state = tmp_path / "eagle.state"

    def run(task, seconds):
        return train(task, seconds, state, lambda: kept.append(1), lambda text: None)

    task = tasks(bench)["eagle"]
    loss, count = task.loss, []

    def stopping(step, progress):
        count.append(step)
        if len(count) == 3:
            raise SystemExit
        return loss(step, progress)

    task.loss = stopping
    with pytest.raises(SystemExit):
        run(task, 60)
    assert state.exists()
    task = tasks(bench)["eagle"]
    loss, steps = task.loss, []
    task.loss = lambda step, progress: steps.append(step) or loss(step, progress)
    done = run(task, 1.0)
    assert steps[0] == 2
    assert done["steps"] == 2 + len(steps)
    assert len(kept) == 1
    assert run(tasks(bench)["eagle"], 1.0)["steps"] == done["steps"]


def test_texts_come_back_as_they_were_stored(tmp_path, bench):
    """Tokens, states, where the prompt ends, and the kind."""
    made = texts(bench, 3, 1)
    bench.head_text.store(tmp_path / "train-0000.safetensors", made)
    back = bench.head_text.read(tmp_path, "train")
    for one, other in zip(made, back, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.states, other.states)
        assert (one.prompt, one.kind) == (other.prompt, other.kind)
    assert bench.head_text.read(tmp_path, "held") == []


def test_a_step_without_every_token_weighs_the_rest(bench):
    """Labels are always among the tokens; those drawn from the rest stand for all of it."""
    vocabulary = bench.head_training.Vocabulary(torch.randn(5000, 8), texts(bench, 4, 1))
    labels = torch.tensor([4999, 3, 3])
    sample = vocabulary.draw(labels, torch.Generator().manual_seed(1))
    assert (sample.place[labels] >= 0).all()
    drawn = sample.shift > 0
    assert 500 < drawn.sum() < 1024
    rest = 5000 - int((~drawn).sum())
    assert float(sample.shift.exp()[drawn].sum()) == pytest.approx(rest, rel=1e-3)


def test_acceptance_stops_at_the_first_draft_that_is_wrong(bench):
    """A later draft that is right by chance counts nothing."""
    right = torch.tensor(
        [[True, True, False, True], [True, False, True, True], [True, True, True, False]]
    )
    score = bench.head_training.score_of(right)
    assert score.first == 0.75
    assert score.length == 1 + (3 + 1 + 0 + 2) / 4


def test_held_out_prompts_are_about_other_things(bench):
    """Prompts depend on the seed alone, differ, and no subject is in both parts."""
    made = bench.head_prompts
    held, train = (made.prompts(150, 1, held=held) for held in (True, False))
    assert held == made.prompts(150, 1, held=True)
    assert len({text for _, text, _ in held + train}) == 300
    assert {kind for kind, _, _ in held} == {kind for kind, _, _ in train} == set(made.KINDS)
    for lists in (made.TOPICS, [name for name, *_ in made.FUNCTIONS], made.NAMES, made.CITIES):
        assert len(set(lists)) == len(lists)
    subjects = made.NAMES[:: made.HELD_EVERY]
    assert not [text for _, text, _ in train for name in subjects if name in text]
