"""Draft heads: published tensor names, reduced vocabularies, trees, confidences, and errors that say what to do."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.medusa import grow_tree
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.fields import evolve
from support.drafters import HEADS, K, Stage, context_of, engine_spec, play

LAYER = {
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{p}_proj" for p in "qkvo"),
    *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
}
QWEN = LAYER | {"self_attn.q_norm", "self_attn.k_norm"}


ADAPTIVE = {"enable_adaptive_verification": True}


def below(prefix, names):
    return {f"{prefix}{name}.weight" for name in names}


TENSORS = {
    "eagle": below("layers.0.", LAYER - {"input_layernorm"}) | {"fc.weight"},
    "eagle3": below("midlayer.", LAYER | {"hidden_norm"})
    | {"fc.weight", "norm.weight", "lm_head.weight"},
    "mtp": below(
        "model.mtp_layers.0.",
        LAYER | {"token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"},
    ),
    "dflash": below("layers.0.", QWEN)
    | below("layers.1.", QWEN)
    | {"fc.weight", "hidden_norm.weight", "norm.weight"},
    "dspark": below("layers.0.", QWEN)
    | below("layers.1.", QWEN)
    | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    | {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
    | {"confidence_head.proj.weight", "confidence_head.proj.bias"},
    "medusa": {
        f"{n}.{rest}" for n in range(4) for rest in ("0.linear.weight", "0.linear.bias", "1.weight")
    },
}
"""Tensors of published heads, by their names there."""


@pytest.fixture
def recorded(monkeypatch):
    """What a seeded head asked for."""
    from graphspec.engine.drafters.head_weights import HeadReader

    tensors, made = {}, HeadReader._made

    def recording(reader, name, shape):
        tensors[name] = made(reader, name, shape)
        return tensors[name]

    monkeypatch.setattr(HeadReader, "_made", recording)
    return tensors


def proposals(spec):
    """Drafts of one request after one step."""
    stage = Stage(spec, seed=5)
    actor = stage.enter(12)
    stage.step([actor], K)
    return actor.drafts, stage


@pytest.mark.parametrize("name", TENSORS)
def test_a_checkpoint_by_published_names_is_read(tmp_path, recorded, name):
    """A folder that holds these tensors and no others drafts as the same weights from a seed do."""
    spec = engine_spec(tmp_path, name, **(ADAPTIVE if name == "dspark" else {}))
    seeded, _ = proposals(spec)
    assert set(recorded) == TENSORS[name]
    save_file(
        {n: t.contiguous() for n, t in recorded.items()}, tmp_path / "head" / "model.safetensors"
    )
    recorded.clear()
    drafts, _ = proposals(spec)
    assert drafts == seeded
    assert not recorded


@pytest.mark.parametrize("name", [n for n in HEADS if "parallel" not in n and "fill" not in n])
def test_a_seed_makes_the_same_head_anywhere_and_another_seed_another(tmp_path, name):
    """Seeded weights depend on the seed and the tensors' names."""
    spec = engine_spec(tmp_path, name)
    weights = [
        make_drafter(context_of(spec, **seed)).static_tensors() for seed in ({}, {}, {"seed": 4})
    ]
    own = [n for n in weights[0] if weights[0][n].dim() > 1 and not n.endswith("cache")]
    own = [n for n in own if not n.startswith("draft.") and n not in ("embedding", "head")]
    assert own
    for n in own:
        assert torch.equal(weights[0][n], weights[1][n])
        assert not torch.equal(weights[0][n], weights[2][n])


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    """Which file, which tensor, found and wanted."""
    spec = engine_spec(tmp_path, "eagle")
    save_file({"fc.weight": torch.zeros(3, 4)}, tmp_path / "head" / "model.safetensors")
    with pytest.raises(EnvironmentProblem, match=r"tensor fc\.weight: found shape \(3, 4\)"):
        make_drafter(context_of(spec))


def test_a_tensor_that_is_absent_is_named(tmp_path):
    """A checkpoint with weights is never filled up with seeded ones."""
    spec = engine_spec(tmp_path, "eagle")
    save_file({"fc.weight": torch.zeros(32, 64)}, tmp_path / "head" / "model.safetensors")
    with pytest.raises(EnvironmentProblem, match=r"no tensor layers\.0"):
        make_drafter(context_of(spec))


def test_a_reduced_vocabulary_is_mapped_by_the_checkpoints_table(tmp_path, recorded):
    """EAGLE-3's d2t holds what to add to a draft id: drafts, fed back and proposed, are ids of the target."""
    spec = engine_spec(tmp_path, "eagle3", options={"draft_vocab_size": 24})
    proposals(spec)
    file = tmp_path / "head" / "model.safetensors"
    offsets = torch.arange(24) * 3
    save_file({**{n: t.contiguous() for n, t in recorded.items()}, "d2t": offsets}, file)
    stage = Stage(spec, seed=5)
    play(stage, 12)
    assert stage.compared > 5
    drafts = {t for a in stage.actors for t in a.drafts}
    assert drafts
    assert all(t % 4 == 0 for t in drafts)
    assert load_file(file)["lm_head.weight"].shape == (24, 32)


@pytest.mark.parametrize("name", ["dflash", "eagle3 parallel", "draft_model parallel"])
def test_a_checkpoint_without_its_mask_token_is_refused(tmp_path, name):
    """Drafts made with another mask than the trained one are noise, so there is no default."""
    spec = engine_spec(tmp_path, name, options={"mask_token_id": None})
    with pytest.raises(SpecError, match="mask_token_id, ptd_token_id or pard_token"):
        make_drafter(context_of(spec))


def test_layers_that_the_drafter_lacks_are_refused(tmp_path):
    """A head with norms that the reference does not have would draft noise and say nothing."""
    spec = engine_spec(tmp_path, "eagle3", options={"fc_norm": True})
    with pytest.raises(SpecError, match="fc_norm True"):
        make_drafter(context_of(spec))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("eagle", {"attention_bias": True}, "attention_bias: found True"),
        (
            "eagle3",
            {"hidden_act": "gelu", "mlp_bias": True},
            "hidden_act: found 'gelu'(?s:.*)mlp_bias",
        ),
        ("mtp", {"num_local_experts": 8}, "experts: found 8"),
        (
            "dflash",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types: found .'sliding_attention'.",
        ),
        ("draft_model", {"model_type": "qwen2"}, "of the family qwen2"),
    ],
)
def test_a_model_whose_layers_are_others_is_refused(tmp_path, name, options, message):
    """All that the drafter would not follow is named at once, before any weight is read."""
    spec = engine_spec(tmp_path, name, options=options)
    with pytest.raises(SpecError, match=message):
        make_drafter(context_of(spec))


def test_confidence_is_asked_for_and_must_be_there(tmp_path):
    """Without adaptive verification the head does not run; with it, a checkpoint without one is refused."""
    spec = engine_spec(tmp_path, "dspark")
    assert "confidence" not in make_drafter(context_of(spec)).static_tensors()
    spec = engine_spec(tmp_path, "dspark", options={"enable_confidence_head": False}, **ADAPTIVE)
    with pytest.raises(SpecError, match="which has no confidence head"):
        make_drafter(context_of(spec))


def test_eagle3_variants_change_drafts(tmp_path):
    """The two switches that the drafter follows do something."""
    plain, _ = proposals(engine_spec(tmp_path, "eagle3"))
    for switch in ("norm_before_residual", "norm_output"):
        changed, _ = proposals(engine_spec(tmp_path, "eagle3", options={switch: True}))
        assert changed != plain


def test_medusa_with_several_candidates_drafts_a_tree(tmp_path):
    """Parents come before children, siblings differ, and no node lies deeper than there are heads."""
    spec = engine_spec(
        tmp_path,
        "medusa",
        num_speculative_tokens=4,
        speculator_options={"top_k": 3},
    )
    stage = Stage(spec, seed=2)
    actor = stage.enter(9)
    seen = []
    propose = stage.drafter.propose
    stage.drafter.propose = lambda step: seen.append(propose(step)) or seen[-1]
    stage.step([actor], 4)
    ((proposal,),) = seen
    assert len(proposal.tokens) == len(proposal.parents) == 4
    depth, edges = [], set()
    for at, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        assert -1 <= parent < at
        depth.append(1 if parent < 0 else depth[parent] + 1)
        edges.add((parent, token))
    assert max(depth) <= 4
    assert len(edges) == 4


def test_a_tree_takes_the_likeliest_nodes():
    """Against all nodes enumerated: those taken have the largest products of probabilities."""
    made = torch.Generator().manual_seed(1)
    scores = torch.randn((3, 3), generator=made).log_softmax(-1).sort(-1, descending=True).values
    scores = [[round(v, 6) for v in row] for row in scores.tolist()]
    ids = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    ways = {(): 0.0}
    for depth in range(3):
        ways |= {
            (*way, ids[depth][rank]): score + scores[depth][rank]
            for way, score in ways.items()
            if len(way) == depth
            for rank in range(3)
        }
    best = sorted((w for w in ways if w), key=lambda w: -ways[w])
    for size in (1, 4, 9, 39):
        tokens, parents = grow_tree(scores, ids, size)
        taken = []
        for token, parent in zip(tokens, parents, strict=True):
            taken.append((*(taken[parent] if parent >= 0 else ()), token))
        assert set(taken) == set(best[:size])


def test_dspark_refines_each_draft_by_the_one_before_and_says_how_sure_it_is(tmp_path):
    """Without the Markov head drafts differ; confidences are probabilities, one a draft; candidates can be limited."""
    seen = {}
    for label, options, section in (
        ("refined", {}, {}),
        ("plain", {"markov_rank": 0, "confidence_head_with_markov": False}, {}),
        ("narrow", {}, {"dspark_draft_topk": 1}),
    ):
        spec = engine_spec(tmp_path, "dspark", options=options, **section, **ADAPTIVE)
        stage = Stage(spec, seed=2)
        for _ in range(6):
            stage.enter(9)
        propose = stage.drafter.propose
        stage.drafter.propose = lambda step, p=propose, at=label: seen.setdefault(at, p(step))
        stage.step(stage.actors, K)
    for proposal in (p for proposals in seen.values() for p in proposals):
        assert len(proposal.confidence) == len(proposal.tokens) == K
        assert all(0 < c < 1 for c in proposal.confidence)
    drafts = {label: [p.tokens for p in proposals] for label, proposals in seen.items()}
    assert drafts["refined"] != drafts["plain"]
    # With one candidate the Markov head has nothing to choose from.
    assert drafts["narrow"] == drafts["plain"]


def test_a_block_is_split_as_the_contract_says(tmp_path):
    """No draft pass holds more requests than `max_num_draft_seqs`; the stage sees that drafts do not depend on the split."""
    spec = engine_spec(tmp_path, "dflash")
    spec = evolve(spec, scheduler=evolve(spec.scheduler, max_num_batched_tokens=14))
    assert spec.max_num_draft_seqs == 2
    stage = Stage(spec, seed=3)
    for _ in range(5):
        stage.enter(4)
    sizes, draft_pass = [], stage.drafter.draft_pass
    stage.drafter.draft_pass = lambda bucket, k: sizes.append(bucket) or draft_pass(bucket, k)
    stage.step(stage.actors, K)
    assert sizes == [2, 2, 1]
    assert stage.compared == 5
