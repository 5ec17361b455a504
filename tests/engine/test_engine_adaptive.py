"""Adaptive verification in the engine: fewer drafts are verified, in graphs that are there, and the text is the same."""

import attrs
import pytest
import torch

from graphspec.capture.keys import Phase
from graphspec.capture.plan import plan_capture
from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.engine.adaptive import AdaptiveVerification
from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.sampling import Draws
from graphspec.engine.sampling import SamplingParams
from graphspec.fields import evolve
from graphspec.kernels.adaptive import CostTable
from graphspec.kernels.adaptive_model import AcceptanceModel, Curve
from support.checkpoints import TINY, write_checkpoint
from support.drafters import K, engine_spec
from support.texts import ties_and_strays
from support.tiny_engine import tiny_engine

TABLE = [[1, 4, 4], [5, 5, 2], [6, 6, 0]]
COST = CostTable.of_verify({n: 6.0 + n for n in range(1, 31)}, captured=30)
"""Seconds by tokens: a draft is worth its time if its chance is fair."""
GREEDY = SamplingParams(max_tokens=24)
PROMPTS = [[5, 6, 7, 8] * 3, list(range(20, 43)), [9], [3, 1, 4, 1, 5]]
LEARNS = (
    "eagle",
    "dflash",
    *(
        pytest.param(n, marks=pytest.mark.deep)
        for n in ("draft_model", "mtp multi-module", "medusa")
    ),
)


def spec_of(folder, name, *, table=TABLE, adaptive=True):
    section = {"enable_adaptive_verification": adaptive}
    spec = engine_spec(folder, name, num_speculative_tokens_per_batch_size=table, **section)
    # Pieces for prompts have their own tests.
    return evolve(spec, mode=evolve(spec.mode, granted=CudagraphMode.FULL_DECODE_ONLY))


def surely_learned():
    """A model that is past its first refits, so that it chooses at once."""
    return AcceptanceModel(curves=(Curve(slope=1.0, offset=0.0),) * K, refits=3)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What the model writes alone."""
    spec = spec_of(tmp_path_factory.mktemp("plain"), "eagle", adaptive=False)
    return tiny_engine(spec.without_speculation()).generate(PROMPTS, GREEDY)


@pytest.mark.parametrize("name", ["dspark", *LEARNS])
def test_text_is_the_same_when_drafts_are_trimmed(tmp_path, wanted, name):
    """By a drafter's own confidence and by a model of margins, with few blocks, from a cold and a hot cache; all steps are captured
    ones or mixed."""
    spec = spec_of(tmp_path, name)
    spec = evolve(spec, kv_cache=evolve(spec.kv_cache, num_blocks=26))
    adaptive = AdaptiveVerification(COST, None if name == "dspark" else surely_learned())
    engine = tiny_engine(spec, adaptive=adaptive)
    drafted = 0
    for _ in ("cold", "hot"):
        made = engine.generate(PROMPTS, GREEDY)
        _, _, strays = ties_and_strays(made, wanted)
        assert strays == 0
        drafted += sum(m.drafted for m in made)
    counts = engine.counts
    assert counts.preemptions > 0
    assert counts.prefix_hits > 0
    assert 0 < counts.trimmed_tokens < counts.draft_tokens
    assert set(counts.modes) == {("full", ""), ("none", "mixed_batch")}
    assert drafted == counts.draft_tokens
    assert counts.kv_usage == 0


def test_what_is_verified_is_what_the_choice_says(tmp_path):
    """Between the choice and the rows of a step nothing is added or lost, and graphs are of the schedule's depths."""
    adaptive = AdaptiveVerification(COST, None)
    engine = tiny_engine(spec_of(tmp_path, "dspark"), adaptive=adaptive)
    choose, chosen, plans = adaptive.lengths, [], []

    def watched(scores, **more):
        chosen.append((scores, choose(scores, **more)))
        return chosen[-1][1]

    engine.scheduler._trim = watched
    run = engine._run
    engine._run = lambda plan: plans.append(plan) or run(plan)
    engine.generate(PROMPTS, GREEDY)
    drafting = [p for p in plans if any(part.drafts + part.trimmed for part in p.requests)]
    assert len(drafting) == len(chosen) > 10
    for plan, (scores, lengths) in zip(drafting, chosen, strict=True):
        assert [part.drafts for part in plan.requests] == list(lengths)
        assert [part.drafts + part.trimmed for part in plan.requests] == list(map(len, scores))
        assert plan.route.k in {4, 2, 0}
        assert plan.route.k >= max(lengths)
    assert len({plan.route.k for plan in drafting}) > 1


def test_the_contract_alone_makes_an_engine_that_measures_and_learns(tmp_path, wanted):
    """Costs of each captured size, and a model that saw what was kept."""
    engine = tiny_engine(spec_of(tmp_path, "eagle"))
    adaptive = engine._adaptive
    plan = engine._manager.plan
    sizes = {key.tokens for key in plan.keys if key.phase is Phase.TARGET_VERIFY}
    assert adaptive._verify_cost.sizes == tuple(sorted(sizes))
    assert min(adaptive._verify_cost.costs) > 0
    assert adaptive.model.full_blocks
    made = engine.generate(PROMPTS, GREEDY)
    assert ties_and_strays(made, wanted)[2] == 0
    # Until it has learned, all drafts are verified.
    assert engine.counts.trimmed_tokens == 0
    model = engine._adaptive.model
    assert model.steps > 10
    assert model.curves[0].count >= model.curves[1].count > 0
    assert adaptive.draft_cost.at(1) > 0


def test_nothing_is_measured_where_nobody_asked(tmp_path):
    """Without the option, and for the same contract without speculation."""
    spec = spec_of(tmp_path, "eagle", adaptive=False)
    assert tiny_engine(spec)._adaptive is None
    assert tiny_engine(spec.without_speculation())._adaptive is None


def test_a_plan_for_trimmed_drafts_has_each_depth_for_every_batch_of_deeper_ones(tmp_path):
    """And no graph that no step reaches."""
    plain, adaptive = (
        plan_capture(spec_of(tmp_path, "dspark", adaptive=asked)) for asked in (False, True)
    )
    assert dict(plain.buckets) == {4: (1, 2, 3, 4), 2: (5,), 0: (6,)}
    assert dict(adaptive.buckets) == {
        4: (1, 2, 3, 4),
        2: (1, 2, 3, 4, 5),
        0: (1, 2, 3, 4, 5, 6),
    }
    for plan in (plain, adaptive):
        assert frozenset(plan.keys) == plan.reachable()
    own = plan_capture(spec_of(tmp_path, "dspark"), buckets={2: (5,)})
    assert own.buckets[2] == (5,)
    assert own.buckets[0] == (1, 2, 3, 4, 5, 6)


SMALL, CRITICAL, TEMPERATURE, COUNT = 8, 28.0, 2.0, 600
TEXT = [1, 2, 3, 1, 2, 4, 1, 2]


class Lucky:
    """Draws drafts, and is sure of those that are even: of their values."""

    def propose(self, step):
        return [self._one(r) for r in step.requests]

    def _one(self, request):
        draws = Draws(request, samples=True)
        logits = torch.full((SMALL,), -30.0)
        logits[1] = logits[2] = 0.0
        for _ in range(request.wanted):
            token = draws.take(0, logits, None)
            draws.confidence.append(float(token % 2 == 0))
        return draws.proposal(None, SMALL)

    def forget(self, request):
        pass


class OwnScores(AdaptiveVerification):
    """Chooses by the drafts' own scores also where they were drawn."""

    def scores(self, request, proposal):
        return super().scores(request, attrs.evolve(proposal, logits=None))


@pytest.mark.parametrize("choice", [AdaptiveVerification, OwnScores])
def test_drawn_drafts_are_not_chosen_by_their_values(tmp_path, choice):
    """The second tokens of many requests fit the model's distribution. Chosen by their own scores, those that are verified are
    no draws from their distribution, and the same test refuses the fit: Pearson's chi-square, 7 degrees of freedom, refused
    where chance lies one time in 5,000."""
    engine = tiny_engine(small_spec(tmp_path), adaptive=choice(COST, None))
    engine._drafter = Lucky()
    expected = exact(engine) * COUNT
    found = torch.zeros(SMALL, dtype=torch.float64)
    wishes = [
        SamplingParams(max_tokens=3, temperature=TEMPERATURE, seed=at, ignore_eos=True)
        for at in range(COUNT)
    ]
    for one in engine.generate([TEXT] * COUNT, wishes):
        found[one.tokens[1]] += 1
    far = float(((found - expected) ** 2 / expected).sum())
    assert engine.counts.draft_tokens == COUNT
    assert (far < CRITICAL) == (choice is AdaptiveVerification)
    assert (engine.counts.trimmed_tokens > 0) == (choice is OwnScores)


def small_spec(folder):
    checkpoint = write_checkpoint(folder, {**TINY, "vocab_size": SMALL})
    spec = EngineConfig.from_dict(
        {
            "model": {"source": str(checkpoint), "max_model_len": 64},
            "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 256},
            "kv_cache": {"block_size": 4, "num_blocks": 256},
            "speculative": {"method": "ngram", "num_speculative_tokens": 2},
        }
    ).resolve()
    return evolve(spec, mode=evolve(spec.mode, granted=CudagraphMode.NONE))


def exact(engine):
    """p(b) for each second token after the text, by the model's own logits."""

    def after(tokens):
        rows = [RequestRows(tokens=tokens, position=0, blocks=[1, 2, 3])]
        return (engine._executor.logits(rows)[-1].double() / TEMPERATURE).softmax(-1)

    first = after(TEXT)
    return torch.stack([first[a] * after([*TEXT, a]) for a in range(SMALL)]).sum(0)
