"""Verification answers that vLLM's own kernels gave for given logits, weights, uniform numbers and noise."""

import json
from pathlib import Path

import pytest
import torch

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.kernels import FlyRule
from graphspec.kernels.verify_reference import Rows, best_token, decide, entropy, residual
from graphspec.kernels.verify_values import conditional_rates
from support.verification import ask

PEER = json.loads((Path(__file__).parents[1] / "data" / "verification-cases.json").read_text())
IMPLEMENTATIONS = ["reference", "cpu"]


def logits(rows):
    return [[float("-inf") if x is None else x for x in row] for row in rows]


def shares(rows):
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.sum(-1, keepdim=True)


def possible(drafts):
    """The drafts before the first that is padding."""
    return drafts[: drafts.index(-1)] if -1 in drafts else drafts


def fly_of(case):
    return FlyRule(
        window=case["fly_window_size"],
        entropy_threshold=case["fly_entropy_threshold"],
        entropy_top_k=case["fly_entropy_top_k"],
    )


class Given:
    """Chances that a case states: a uniform number of each row, and the token that replaces its draft."""

    def __init__(self, uniforms, replacements):
        self.uniforms, self.replacements = uniforms, replacements

    def accept(self, row, chance, *, or_equal=False):
        return self.uniforms[row] < chance

    def pick(self, row, weights):
        return self.replacements[row]


def given_tokens(case, method, **more):
    """What the reference decides about a case of weights, as the old runner takes them."""
    target = shares(case["target_weights"])
    drafts = possible(case["drafts"])
    rows = Rows(
        drafts=drafts,
        target=torch.cat([target, target[:1]])[: len(drafts) + 1],
        draft=None if case["draft_weights"] is None else shares(case["draft_weights"]),
        method=method,
        **more,
    )
    kept, token = decide(rows, Given(case["uniforms"], [*case["recovered"], case["bonus"]]))
    return [*drafts[:kept], token]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", PEER["greedy"])
def test_greedy_cases(case, implementation):
    """Batches of ragged drafts, padding among them, at temperature 0."""
    requests = case["requests"]
    target, drafts = [logits(r["target"]) for r in requests], [r["drafts"] for r in requests]
    assert ask(target, drafts, implementation) == [r["output"] for r in requests]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", PEER["fly_greedy"])
def test_fly_greedy_cases(case, implementation):
    """Greedy requests with FLy and without it."""
    target, drafts = [logits(case["target"])], [case["drafts"]]
    made = ask(target, drafts, implementation, methods=RejectionSampleMethod.FLY, fly=fly_of(case))
    assert made == [case["output"]]
    assert ask(target, drafts, implementation) == [case["output_without_fly"]]


@pytest.mark.parametrize("case", PEER["fly_greedy"])
def test_fly_entropies(case):
    """Entropy of each row that has a draft, of its largest probabilities."""
    p = torch.softmax(torch.tensor(logits(case["target"]), dtype=torch.float64), -1)
    made = [entropy(row, case["fly_entropy_top_k"]) for row in p]
    assert made[: len(case["entropy"])] == pytest.approx(case["entropy"], abs=1e-5)


@pytest.mark.parametrize("case", PEER["synthetic_greedy"])
def test_synthetic_greedy_cases(case):
    """Conditional rates, and what they keep of a greedy request for given uniform numbers."""
    chances = conditional_rates(case["rates"])
    assert chances == pytest.approx(case["conditional"], abs=1e-6)
    values = torch.tensor(logits(case["target"]), dtype=torch.float64)
    drafts = possible(case["drafts"])
    rows = Rows(
        drafts=drafts,
        target=torch.softmax(values, -1),
        best=best_token(values),
        method="synthetic",
        chances=chances,
    )
    kept, token = decide(rows, Given(case["uniforms"], []))
    assert [*drafts[:kept], token] == case["output"]


@pytest.mark.parametrize("case", PEER["random_verify"])
def test_random_cases(case):
    """Sampled requests, with draft probabilities and without, for given uniform numbers and replacements."""
    assert given_tokens(case, "standard") == case["output"]


@pytest.mark.parametrize("case", PEER["fly_random"])
def test_fly_random_cases(case):
    """Sampled requests with FLy and without it; the entropy is that of the distribution that is sampled from."""
    assert given_tokens(case, "fly", fly=fly_of(case)) == case["output"]
    assert given_tokens(case, "standard") == case["output_without_fly"]


@pytest.mark.parametrize("case", PEER["recovered"])
def test_replacement_weights(case):
    """The weights of a rejected draft's replacement give the peer's token in its exponential race."""
    rows = Rows(
        drafts=[case["draft"]],
        target=shares([case["target_weights"]] * 2),
        draft=None if case["draft_weights"] is None else shares([case["draft_weights"]]),
    )
    race = residual(rows, 0) / torch.tensor(case["noise"], dtype=torch.float64)
    assert int(race.argmax()) == case["output"]
