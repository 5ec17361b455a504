"""Tiny engines of every drafting method, and a stage on which a drafter plays against scripted targets.

The stage stands for the target and the scheduler. Its hidden states are a fixed function of the tokens before them, its
texts are random, and it accepts as many drafts as it is told. Each promise that a drafter gives is checked at each step.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from graphspec.config.engine import EngineConfig
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.protocol import Computed, TargetStep
from graphspec.engine.outputs import aux_layers
from graphspec.engine.weights import load_weights
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.base import DraftPhase
from support.checkpoints import TINY, write_checkpoint
from support.speculative import checkpoint

TARGET: Mapping[str, Any] = {
    **TINY,
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
}
BLOCK, K, POISON = 4, 4, 1e4
_HEAD = {**TINY, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
_MASK = {"mask_token_id": 95}
_QWEN = {**_HEAD, "model_type": "qwen3", "num_hidden_layers": 2, **_MASK, "block_size": 8}
_MEDUSA = {"medusa_num_heads": 4, "medusa_num_layers": 1}

HEADS: Mapping[str, Mapping[str, Any]] = {
    "eagle": {"config": _HEAD, "method": "eagle"},
    "eagle3": {
        "config": {**_HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 96},
        "method": "eagle3",
    },
    "eagle3 parallel": {
        "config": {
            **_HEAD,
            **_MASK,
            "architectures": ["PEagleDraftModel"],
            "num_hidden_layers": 2,
            "draft_vocab_size": 96,
        },
        "method": "eagle3",
        "parallel_drafting": True,
    },
    "mtp": {
        "config": {
            **_HEAD,
            "model_type": "mimo",
            "architectures": ["MiMoForCausalLM"],
            "num_nextn_predict_layers": 1,
        },
        "method": "mtp",
    },
    "mtp multi-module": {
        "config": {
            **_HEAD,
            "model_type": "mimo",
            "architectures": ["MiMoForCausalLM"],
            "num_nextn_predict_layers": 2,
        },
        "method": "mtp",
    },
    "dflash": {
        "config": {
            **_QWEN,
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {"target_layer_ids": [0, 1, 2]},
        },
        "method": "dflash",
    },
    "dspark": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen3DSparkModel"],
            "target_layer_ids": [0, 2],
            "markov_rank": 4,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        "method": "dspark",
    },
    "dspark fill-in": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen3DSparkModel"],
            "target_layer_ids": [0, 2],
            "markov_rank": 4,
            "markov_head_type": "vanilla",
            "sample_from_anchor": False,
        },
        "method": "dspark",
    },
    "medusa": {"config": _MEDUSA, "method": "medusa"},
    "medusa tree": {"config": _MEDUSA, "method": "medusa", "speculator_options": {"top_k": 3}},
}
"""Draft heads by the names of `support.speculative.CASES`: what their config.json says, and the section that names them."""

NAMES = (
    "draft_model",
    "draft_model parallel",
    *HEADS,
    "ngram",
    "ngram_gpu",
    "suffix",
    "extract_hidden_states",
)
"""Every method with a drafter of ours, and each of its variants: what `engine_spec` takes."""


def engine_spec(
    folder: Path, name: str, *, options: Mapping[str, Any] | None = None, **section: Any
) -> EngineSpec:
    """The contract of a tiny engine with the method `name`; its checkpoints are written below `folder`.

    `options` replace fields of the draft's config.json, keywords those of the speculative section.
    """
    target = write_checkpoint(folder / "target", TARGET)
    made: dict[str, Any] = {"num_speculative_tokens": K}
    if name in HEADS:
        case = dict(HEADS[name])
        config = {**case.pop("config"), **(options or {})}
        made |= {**case, "model": checkpoint(folder / "head", config)}
    elif name.startswith("draft_model"):
        config = {**TARGET, "num_hidden_layers": 2, "hidden_size": 16, **_MASK, **(options or {})}
        made |= {"method": "draft_model", "model": str(write_checkpoint(folder / "draft", config))}
        made["parallel_drafting"] = "parallel" in name
    else:
        made["method"] = name
    return EngineConfig.from_dict(
        {
            "model": {"source": str(target), "max_model_len": 160},
            "scheduler": {"max_num_seqs": 6, "max_num_batched_tokens": 192},
            "kv_cache": {"block_size": BLOCK, "num_blocks": 256},
            "speculative": {**made, **section},
        }
    ).resolve()


def context_of(spec: EngineSpec, **changes: Any) -> DraftContext:
    """What a drafter of `spec` is made from. What no request owns is poisoned."""
    weights = load_weights(spec.model, spec.device)
    made = {"seed": 3, "debug_padding": True, **changes}
    return DraftContext(spec=spec, weights=weights, **made)


class Guarded(Sequence[int]):
    """Tokens of which only those below `end` may be read; the length is free."""

    def __init__(self, tokens: Sequence[int], end: int) -> None:
        self._tokens, self._end = list(tokens), end

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, at: Any) -> Any:
        wanted = range(len(self._tokens))[at]
        last = wanted if isinstance(wanted, int) else max(wanted, default=-1)
        assert last < self._end, f"token {last} is read, and only {self._end} are within the window"
        return self._tokens[at]


@attrs.define(eq=False)
class Actor:
    """One request of the stage."""

    id: int
    tokens: list[int]
    prompt: int
    blocks: list[int]
    temperature: float = 0.0
    computed: int = 0
    drafts: tuple[int, ...] = ()


class States:
    """Hidden and auxiliary states of the scripted target: a function of a position, its token and the one before."""

    def __init__(self, spec: EngineSpec) -> None:
        made = torch.Generator().manual_seed(11)
        layers = len(aux_layers(spec))
        self._uses = spec.uses_target_hidden_states, layers
        self._width = spec.model.hidden_size * (1 + layers)
        self._tables = [
            torch.randn((n, self._width), generator=made)
            for n in (spec.model.vocab_size, spec.model.vocab_size, 256)
        ]
        self._hidden = spec.model.hidden_size

    def of(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[positions, hidden and auxiliary side by side]."""
        rows = [
            self._tables[0][tokens[p]]
            + self._tables[1][tokens[p - 1] if p else 0]
            + self._tables[2][p]
            for p in positions
        ]
        return torch.stack(rows) if rows else torch.empty(0, self._width)

    def step(self, requests: Sequence[Computed], rows: torch.Tensor) -> TargetStep:
        """A step with these rows."""
        reads, layers = self._uses
        return TargetStep(
            requests=requests,
            hidden=rows[:, : self._hidden].contiguous() if reads else None,
            aux=rows[:, self._hidden :].contiguous() if layers else None,
        )


class Stage:
    """A drafter, requests, and a script from `seed`. `reach` is the farthest slot past the last computed position written."""

    def __init__(self, spec: EngineSpec, seed: int, **changes: Any) -> None:
        self.spec, self.random = spec, random.Random(seed)
        self.drafter = make_drafter(context_of(spec, **changes))
        self.again = make_drafter(context_of(spec, **changes))
        self.states = States(spec)
        self.actors: list[Actor] = []
        self.reach = self.proposed = self.compared = self._entered = 0
        # What looks tokens up on the host makes nothing a position, so that no chunk's end concerns it.
        self._looks_up = spec.speculative.speculator.draft_phase is DraftPhase.NONE
        self._free = list(range(1, spec.kv_cache.num_blocks))
        self.random.shuffle(self._free)

    def enter(self, prompt: int, temperature: float = 0.0) -> Actor:
        """A new request with a random prompt."""
        blocks = [self._free.pop() for _ in range(-(-160 // BLOCK))]
        # Few tokens, so that the text repeats itself and lookups find something.
        tokens = [self.random.randrange(8) for _ in range(prompt)]
        # Never an id again that had been another request's: drafters keep some things by id.
        actor = Actor(self._entered, tokens, prompt, blocks, temperature)
        self._entered += 1
        self.actors.append(actor)
        return actor

    def leave(self, actor: Actor) -> None:
        """The request has ended; its blocks are used by others as they are."""
        self.actors.remove(actor)
        self._free += actor.blocks
        self.drafter.forget(actor.id)

    def step(
        self, acting: Sequence[Actor], k: int, accept: int | None = None, chunk: int = 64
    ) -> None:
        """One step of the target over `acting`, drafts wanted at depth `k`; at most `accept` of the old ones are kept."""
        parts, rows, at = [], [], 0
        for actor in acting:
            part, states, junk = self._computed(actor, k, accept, chunk, at)
            parts.append(part)
            # Rows of rejected drafts lie between those of requests.
            rows += [states, torch.full((junk, states.shape[1]), POISON)]
            at += len(states) + junk
        self._poison(parts)
        before = {n: t.clone() for n, t in self.caches(self.drafter).items()}
        proposals = self.drafter.propose(self.states.step(parts, torch.cat(rows)))
        self._check_writes(parts, before)
        assert len(proposals) == len(parts)
        for actor, part, proposal in zip(acting, parts, proposals, strict=True):
            assert len(proposal.tokens) <= part.wanted
            assert all(0 <= t < self.spec.model.vocab_size for t in proposal.tokens)
            self.proposed += len(proposal.tokens)
            if part.wanted:
                self._compare(actor, part, proposal)
            actor.drafts = tuple(proposal.tokens)

    def _computed(
        self, actor: Actor, k: int, accept: int | None, chunk: int, at: int
    ) -> tuple[Computed, torch.Tensor, int]:
        first, spec = actor.computed, self.spec
        if first < actor.prompt - 1:
            count, window = min(chunk, actor.prompt - first), spec.num_prefill_lookahead_tokens
            left = actor.prompt - first - count
            if 0 < left < window:
                count -= window - left
            junk, done = 0, first + count == actor.prompt
            if done:
                actor.tokens.append(self.random.randrange(8))
        else:
            kept, junk, done = self._verified(actor, accept)
            count = 1 + kept
        actor.computed = first + count
        part = Computed(
            request=actor.id,
            tokens=tuple(actor.tokens)
            if done or self._looks_up
            else Guarded(actor.tokens, first + count + spec.num_prefill_lookahead_tokens),
            first=first,
            count=count,
            row=at,
            blocks=actor.blocks,
            wanted=k if done else 0,
            temperature=actor.temperature,
            seed=100 + actor.id,
        )
        return part, self.states.of(actor.tokens, range(first, first + count)), junk

    def _verified(self, actor: Actor, accept: int | None) -> tuple[int, int, bool]:
        drafts = actor.drafts
        most = len(drafts) if accept is None else min(accept, len(drafts))
        kept = self.random.randint(0, most) if accept is None else most
        actor.tokens += drafts[:kept]
        others = [t for t in range(8) if kept == len(drafts) or t != drafts[kept]]
        actor.tokens.append(self.random.choice(others))
        return kept, len(drafts) - kept, True

    def caches(self, drafter: Any) -> dict[str, torch.Tensor]:
        """Caches of keys and values: [layers, 2, blocks, block_size, ...]."""
        return {n: t for n, t in drafter.static_tensors().items() if n.endswith("cache")}

    def _slots(self, blocks: Sequence[int], positions: range) -> list[int]:
        return [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in positions]

    def _poison(self, parts: Sequence[Computed]) -> None:
        """What lies past the last computed position is provisional: whoever reads it later reads poison."""
        for part in parts:
            last = part.first + part.count - 1
            slots = self._slots(part.blocks, range(last + 1, len(part.blocks) * BLOCK))
            for cache in self.caches(self.drafter).values():
                cache.flatten(2, 3)[:, :, slots] = POISON

    def _check_writes(self, parts: Sequence[Computed], before: Mapping[str, torch.Tensor]) -> None:
        """Writes lie in the requests' own slots, from those that may be computed again up to the lookahead."""
        speculator = self.spec.speculative.speculator
        changed = torch.zeros(self.spec.kv_cache.num_blocks * BLOCK, dtype=torch.bool)
        for name, cache in self.caches(self.drafter).items():
            changed |= (cache != before[name]).flatten(2, 3).transpose(0, 2).flatten(1).any(1)
        allowed = set(range(BLOCK))  # the scratch block
        for part in parts:
            last = part.first + part.count - 1
            again = max(0, self.spec.num_prefill_lookahead_tokens - 1)
            end = last + 1 + (speculator.num_lookahead_tokens(part.wanted) if part.wanted else 0)
            allowed |= set(self._slots(part.blocks, range(max(0, part.first - again), end)))
            ahead = range(last + 1, len(part.blocks) * BLOCK)
            written = [
                p - last
                for p, slot in zip(ahead, self._slots(part.blocks, ahead), strict=True)
                if changed[slot]
            ]
            self.reach = max([self.reach, *written])
        strays = set(changed.nonzero().flatten().tolist()) - allowed
        assert not strays, f"slots {sorted(strays)} are outside of what is reserved"

    def _compare(self, actor: Actor, part: Computed, proposal: Any) -> None:
        """A fresh drafter that is given the whole text at once proposes the same."""
        for cache in self.caches(self.again).values():
            cache.fill_(POISON)
        count = len(actor.tokens) - 1
        whole = attrs.evolve(part, first=0, count=count, row=0, tokens=tuple(actor.tokens))
        states = self.states.step([whole], self.states.of(actor.tokens, range(count)))
        (expected,) = self.again.propose(states)
        self.again.forget(part.request)
        assert proposal.tokens == expected.tokens
        assert proposal.parents == expected.parents
        for mine, fresh in (
            (proposal.logits, expected.logits),
            (proposal.confidence, expected.confidence),
            (proposal.margins, expected.margins),
        ):
            assert (mine is None) == (fresh is None)
            if mine is not None:
                assert torch.allclose(
                    torch.as_tensor(mine), torch.as_tensor(fresh), atol=1e-4, rtol=1e-3
                )
        self.compared += 1


def play(stage: Stage, steps: int) -> None:
    """A run of arrivals, chunks, verified steps of depths up and down to 0, changing batches and departures."""
    rolled = stage.random
    for _ in range(3):
        stage.enter(rolled.randint(1, 30))
    for _ in range(steps):
        if len(stage.actors) < 5 and rolled.random() < 0.1:
            stage.enter(rolled.randint(1, 40))
        long = [a for a in stage.actors if len(a.tokens) > 110]
        for actor in long:
            stage.leave(actor)
            stage.enter(rolled.randint(1, 30))
        acting = [a for a in stage.actors if rolled.random() < 0.8] or stage.actors[:1]
        rolled.shuffle(acting)
        accept = rolled.choice([None, None, 0, K])
        stage.step(acting, rolled.choice([0, 1, 2, K, K]), accept, chunk=rolled.randint(1, 24))
