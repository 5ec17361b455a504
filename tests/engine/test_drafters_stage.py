"""Every drafter keeps its promises on the stage: true keys and values, its own slots, its own window of the prompt.

The stage of `support.drafters` scripts the target. At each step it compares the proposals with those of a fresh drafter that
is given the whole text at once, and the slots that were written with those that the contract reserves.
"""

from typing import ClassVar

import pytest

from graphspec.fields import config_class, evolve
from graphspec.speculators.base import DraftPhase
from graphspec.speculators.dflash import DFlashSpeculatorConfig
from graphspec.speculators.draft_model import StandaloneARSpeculatorConfig
from graphspec.speculators.eagle import EagleSpeculatorConfig
from graphspec.speculators.mtp import MTPSpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class
from support.drafters import BLOCK, NAMES, K, Stage, engine_spec, play
from support.speculative import registered

SPARE = {"eagle": 1, "eagle3": 1, "eagle3 parallel": 1, "mtp": 1, "mtp multi-module": 2}
"""Slots declared and not written. A head's row lies one position before its token, so the last draft that it reads back lies
at k - 1; a second module gives its draft where the first gave one. The declared k is the contract that engines know."""
_LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
OPTIONS = {
    "ngram": _LOOKUP,
    "ngram_gpu": _LOOKUP,
    # Confidences of its own, and margins.
    **{
        name: {"enable_adaptive_verification": True}
        for name in ("dspark", "dflash", "eagle", "draft_model", "mtp multi-module", "medusa")
    },
    # A fresh drafter does not know earlier outputs.
    "suffix": {"suffix_decoding_max_cached_requests": 0},
}


def test_every_registered_method_is_on_the_stage():
    """A new method joins by a case here, or fails this test; a user's own class is its author's business."""
    assert {n.split()[0] for n in NAMES} == set(known_methods()) - {"custom_class"}
    for method in {n.split()[0] for n in NAMES}:
        variants = [v for v, _ in speculator_config_class(method).examples()]
        assert len([n for n in NAMES if n.split()[0] == method]) >= len(variants)


@pytest.mark.parametrize("name", NAMES)
def test_drafts_equal_a_fresh_drafters_and_slots_are_those_declared(tmp_path, name):
    """Through chunks, accepted and rejected drafts, changing batches and depths, nothing stale is ever read."""
    check(engine_spec(tmp_path, name, **OPTIONS.get(name, {})), name, seed=1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("name", NAMES)
def test_the_same_on_other_scripts(tmp_path, name, seed):
    """The same promise, four scripts of three times the length."""
    check(engine_spec(tmp_path, name, **OPTIONS.get(name, {})), name, seed, steps=90)


def check(spec, name, seed, steps=30):
    stage = Stage(spec, seed)
    play(stage, steps)
    assert stage.compared > 20
    assert (stage.proposed > 20) == spec.speculative.speculator.proposes_draft_tokens
    assert stage.reach == spec.num_lookahead_tokens - SPARE.get(name, 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        pytest.param("mtp", {"num_nextn_predict_layers": 4}, id="mtp of 4"),
    ],
)
def test_every_request_may_keep_all_its_drafts_in_a_step_of_the_whole_budget(
    tmp_path, name, options
):
    """The least token budget that serves all requests at the largest depth: some drafters read more rows than it has."""
    spec = engine_spec(tmp_path, name, options=options, **OPTIONS.get(name, {}))
    most, rows = spec.scheduler.max_num_seqs, 1 + K
    scheduler = evolve(spec.scheduler, max_num_batched_tokens=most * rows)
    stage = Stage(evolve(spec, scheduler=scheduler), seed=8)
    for _ in range(most):
        stage.enter(rows)
    for _ in range(4):
        stage.step(stage.actors, K, accept=K)
    assert stage.compared == 4 * most or not spec.speculative.speculator.proposes_draft_tokens


@pytest.mark.parametrize("name", NAMES)
def test_on_a_cached_prefix_drafts_are_those_of_a_request_that_computed_it(tmp_path, name):
    """Blocks of another request serve where the tokens in them, and those that their drafter read behind them, are equal."""
    spec = engine_spec(tmp_path, name, **OPTIONS.get(name, {}))
    stage, cached = Stage(spec, seed=6), 2 * BLOCK
    first = stage.enter(14)
    for _ in range(3):
        stage.step([first], K)
    twin = stage.enter(1)
    twin.tokens = [*first.tokens[: cached + spec.num_prefill_lookahead_tokens], 3, 1, 2]
    twin.blocks = [*first.blocks[:2], *twin.blocks[2:]]
    twin.prompt, twin.computed = len(twin.tokens), cached
    compared = stage.compared
    for _ in range(3):
        stage.step([twin, first], K)
    assert stage.compared == compared + 6


@pytest.mark.parametrize(
    "name", ["draft_model", "draft_model parallel", "eagle3", "mtp multi-module", "dspark"]
)
def test_drawn_drafts_and_their_logits_are_a_fresh_drafters_too(tmp_path, name):
    """With a temperature, drafts depend on the request's seed and its positions, not on steps or the batch."""
    spec = engine_spec(tmp_path, name, draft_sample_method="probabilistic")
    stage = Stage(spec, seed=4)
    for temperature in (0.7, 0.0, 1.3):
        stage.enter(9, temperature)
    for _ in range(6):
        stage.step(stage.actors, K)
    drawn, greedy = stage.actors[0], stage.actors[1]
    assert stage.proposed > 50
    assert drawn.drafts
    assert greedy.drafts


@config_class
class OneSlotShortDraftModel(StandaloneARSpeculatorConfig):
    """A draft model that declares one slot less than it writes."""

    base_method: ClassVar[str | None] = "draft_model"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE

    def num_lookahead_tokens(self, k):
        return k - 1


@config_class
class OneSlotShortDFlash(DFlashSpeculatorConfig):
    """A block drafter that forgets its first query."""

    base_method: ClassVar[str | None] = "dflash"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.PARALLEL

    def num_lookahead_tokens(self, k):
        return k

    def draft_tokens_per_request(self, k):
        return k + 1 if k else 0


@config_class
class OneSlotShortEagle(EagleSpeculatorConfig):
    """A head that declares one slot less than it writes: it writes k - 1."""

    base_method: ClassVar[str | None] = "eagle"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE

    def num_lookahead_tokens(self, k):
        return k - 2


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("draft_model", OneSlotShortDraftModel),
        ("draft_model parallel", OneSlotShortDraftModel),
        ("dflash", OneSlotShortDFlash),
        ("eagle", OneSlotShortEagle),
    ],
)
def test_a_method_that_declares_one_slot_too_few_is_caught(tmp_path, name, cls):
    """The bound is a real one: a drafter that writes the slot after those declared fails the stage."""
    with registered("one_slot_short", cls):
        spec = engine_spec(tmp_path, name, method="one_slot_short")
        with pytest.raises(AssertionError, match="outside of what is reserved"):
            play(Stage(spec, seed=1), 40)


@config_class
class ShortWindowMTP(MTPSpeculatorConfig):
    """Modules that declare a window of one token and read two."""

    base_method: ClassVar[str | None] = "mtp"
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.AUTOREGRESSIVE

    @classmethod
    def specialize(cls, config, section):
        return cls

    def num_prefill_lookahead_tokens(self, k):
        return 1


def test_a_method_that_reads_past_its_window_is_caught(tmp_path):
    """A drafter that reads more of the prompt than the contract says fails the stage."""
    with registered("short_window", ShortWindowMTP):
        spec = engine_spec(tmp_path, "mtp multi-module", method="short_window")
        with pytest.raises(AssertionError, match="within the window"):
            play(Stage(spec, seed=1), 40)


def test_a_drafter_that_skips_what_was_accepted_is_caught(tmp_path):
    """Keys of accepted drafts that are not made again from true states are stale, and the stage sees it."""
    stage = Stage(engine_spec(tmp_path, "eagle"), seed=1)
    honest = stage.drafter.propose

    def lazy(step):
        # Only the last row of each request: what lies before it keeps what was made from drafts.
        import attrs

        cut = [
            attrs.evolve(r, first=r.first + r.count - 1, row=r.row + r.count - 1, count=1)
            if r.wanted
            else r
            for r in step.requests
        ]
        return honest(attrs.evolve(step, requests=cut))

    stage.drafter.propose = lazy
    with pytest.raises(AssertionError):
        play(stage, 40)
