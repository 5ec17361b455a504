"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): modules that each predict one token further.

Module j (from 1) at position p reads the state that module j - 1 gives at p, the target's for the first, and the token at
p + j. So it gives draft j at the last position P that the target computed. Drafts beyond the modules come from running the
last one on, at P + 1, P + 2 and so on, as a single module is run for every draft.

What module j wrote at the last j - 1 positions was made from drafts. The next step writes them again: the target's states
of these few positions are kept until then. That is also why a prompt's chunk needs as many tokens after it as modules run.
"""

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch.nn import functional as F

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import CaptureKey
from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.eagle import embedding_of
from graphspec.engine.drafters.graphs import decline
from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.layers import DraftLayers, Rows
from graphspec.engine.drafters.loop import DraftLoop, Going
from graphspec.engine.drafters.network import Output, last_computed
from graphspec.engine.drafters.protocol import Computed, Proposal, TargetStep
from graphspec.engine.drafters.sampling import Draws, take_each
from graphspec.engine.drafters.scoring import Scorer, scorer
from graphspec.engine.llama import rms_norm
from graphspec.engine.weights import read_layer
from graphspec.speculators.mtp import MTPSpeculatorConfig


class MTPModule:
    """Norms of both inputs, a projection of the two to one, a decoder layer, and a norm before the head.

    Tensors by MiMo's names below ``model.mtp_layers.N.``: ``token_layernorm``, ``hidden_layernorm``, ``input_proj`` [H, 2H]
    with the state first, the layer's own, ``final_layernorm``.
    """

    def __init__(self, context: DraftContext, read: HeadReader, at: int) -> None:
        prefix, width = f"model.mtp_layers.{at}.", context.model.hidden_size
        self._eps = context.model.rms_norm_eps
        self._token_norm = read(prefix + "token_layernorm.weight", width)
        self._hidden_norm = read(prefix + "hidden_layernorm.weight", width)
        self._project = read(prefix + "input_proj.weight", width, 2 * width)
        self._norm = read(prefix + "final_layernorm.weight", width)
        self._layers = DraftLayers(context, [read_layer(read, context.model, prefix)])

    def forward(self, rows: Rows, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """embedded, state [T, H] -> the state that it gives [T, H], normed: it is both scored and read by the next module.

        Writes keys and values at the rows' slots. The first position's token is left out, as in training.
        """
        embedded = embedded.masked_fill((rows.positions == 0)[:, None], 0.0)
        both = torch.cat(
            (
                rms_norm(state, self._hidden_norm, self._eps),
                rms_norm(embedded, self._token_norm, self._eps),
            ),
            -1,
        )
        hidden = self._layers.run(F.linear(both, self._project).contiguous(), rows)
        return rms_norm(hidden, self._norm, self._eps)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache and weights."""
        return {
            **self._layers.static_tensors(),
            "token_norm": self._token_norm,
            "hidden_norm": self._hidden_norm,
            "project": self._project,
            "norm": self._norm,
        }


class _LastModule:
    """The last module as a pass of the loop, whose states are scored and carried alike."""

    to_target: torch.Tensor | None = None

    def __init__(self, module: MTPModule, embedding: torch.Tensor, head: Scorer) -> None:
        self._module, self._embedding, self._head = module, embedding, head

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """`features` [T, H] are states."""
        assert features is not None
        state = self._module.forward(rows, F.embedding(rows.ids, self._embedding), features)
        return Output(scored=state, carried=state)

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """By the shared head."""
        return self._head.logits(scored)


@attrs.define(eq=False)
class _Span:
    """One request in a step: its rows from `start` on, and the states that the next module reads there."""

    draws: Draws
    depth: int
    start: int
    states: torch.Tensor

    @property
    def request(self) -> Computed:
        return self.draws.request

    def token(self, position: int) -> int:
        """A known token, or the draft that stands at this position."""
        known = self.request.tokens
        return (
            known[position] if position < len(known) else self.draws.tokens[position - len(known)]
        )

    def end(self, module: int) -> int:
        """The position up to and without which `module` has the tokens to read, drafts among them."""
        known = len(self.request.tokens) + len(self.draws.tokens)
        return min(last_computed(self.request) + 1, known - module)


class MTPSpeculator:
    """Runs the modules one after another over what the target kept, each on the states of the one before."""

    def __init__(
        self,
        context: DraftContext,
        modules: Sequence[MTPModule],
        embedding: torch.Tensor,
        head: Scorer,
    ) -> None:
        self._context, self._modules, self._embedding, self._head = (
            context,
            modules,
            embedding,
            head,
        )
        # The positions before a step's first are read again, by each module but the last.
        more = max(1, len(modules) - 1)
        self._loop = DraftLoop(context, _LastModule(modules[-1], embedding, head), more=more)
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}

    @classmethod
    def make(cls, context: DraftContext) -> "MTPSpeculator":
        """Reads the modules' weights, or makes them from the seed. No more modules run than drafts are ever wanted."""
        speculator = context.speculative.speculator
        assert isinstance(speculator, MTPSpeculatorConfig)
        count = min(speculator.num_modules, context.spec.num_speculative_tokens)
        with HeadReader(context) as read:
            modules = [MTPModule(context, read, at) for at in range(count)]
            embedding = embedding_of(context, read)
        return cls(
            context,
            modules,
            embedding,
            scorer(context.weights.w_head, context.speculative.draft_lm_head_quantization),
        )

    def propose(self, step: TargetStep) -> list[Proposal]:
        """Drafts for each request; requests that want none only get their keys and values up to date."""
        assert step.hidden is not None
        spans = [self._span(r, step.hidden) for r in step.requests]
        with torch.no_grad():
            for at in range(1, len(self._modules) + 1):
                self._run_module(at, spans)
            self._run_on(step, [s for s in spans if s.depth])
        vocabulary = self._context.spec.model.vocab_size
        return [s.draws.proposal(None, vocabulary) for s in spans]

    def forget(self, request: int) -> None:
        """Drops the states of its last positions."""
        self._kept.pop(request, None)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Buffers, caches and weights."""
        named = {
            f"module{at}.{name}": tensor
            for at, module in enumerate(self._modules)
            for name, tensor in module.static_tensors().items()
        }
        return {
            **self._loop.bench.static_tensors(),
            **named,
            "embedding": self._embedding,
            **self._head.static_tensors(),
        }

    def draft_step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """The passes of the last module after all of them ran once: `DraftLoop.passes`."""
        return self._loop.run(key)

    def fill_draft_example(self, key: CaptureKey, variant: int) -> None:
        """Random tokens and states."""
        self._loop.fill_example(key, variant)

    def _span(self, request: Computed, hidden: torch.Tensor) -> _Span:
        """The request's rows with the kept states before them, and keeps those of its last positions."""
        draws = self._context.draws(request)
        states = hidden[request.row : request.row + request.count]
        start, again = request.first, len(self._modules) - 1
        end, kept = self._kept.get(request.request, (-1, states))
        if again and end == request.first:
            states, start = torch.cat((kept, states)), start - len(kept)
        if again:
            # A copy: the next step of the target may write into its states.
            self._kept[request.request] = (request.first + request.count, states[-again:].clone())
        return _Span(draws, self._context.depth(request), start, states)

    def _run_module(self, at: int, spans: Sequence[_Span]) -> None:
        """Module `at` over every row whose token is there; the requests that want this many drafts get one."""
        module = self._modules[at - 1]
        running = [s for s in spans if s.end(at) > s.start]
        if not running:
            return
        rows = self._loop.bench.write(
            [
                RequestRows(
                    tokens=[s.token(p + at) for p in range(s.start, s.end(at))],
                    position=s.start,
                    blocks=s.request.blocks,
                )
                for s in running
            ]
        )
        counts = [s.end(at) - s.start for s in running]
        states = torch.cat([s.states[:n] for s, n in zip(running, counts, strict=True)])
        given = module.forward(rows, F.embedding(rows.ids, self._embedding), states)
        for s, part in zip(running, given.split(counts), strict=True):
            s.states = part
        drafting = [s for s in running if s.depth >= at]
        if drafting:
            last = torch.stack([s.states[-1] for s in drafting])
            pairs = [(s.draws, i) for i, s in enumerate(drafting)]
            take_each(pairs, self._head.logits(last), None)

    def _run_on(self, step: TargetStep, spans: Sequence[_Span]) -> None:
        """The last module at the positions after the last, for the drafts that are left."""
        if not spans:
            return
        modules = len(self._modules)
        more = [s for s in spans if s.depth > modules]
        if not more:
            decline(step, len(spans), Fallthrough.FIRST_PASS_ONLY)
            return
        going = [
            Going(
                draws=s.draws,
                position=last_computed(s.request) + 1,
                passes=s.depth - modules,
            )
            for s in more
        ]
        self._loop.go_on(step, going, torch.stack([s.states[-1] for s in more]))
