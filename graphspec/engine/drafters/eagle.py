"""EAGLE (arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840) and P-EAGLE: a decoder layer on the target's hidden states.

The row at position p reads the target's state at p and the token at p + 1. Rows of drafts read the head's own output in
place of a state that the target has not computed.
"""

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from graphspec.engine.drafters.autoregressive import AutoregressiveDrafter
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.layers import DraftLayers, Rows
from graphspec.engine.drafters.network import Output
from graphspec.engine.drafters.parallel import ParallelDrafter
from graphspec.engine.drafters.protocol import TargetStep
from graphspec.engine.drafters.scoring import scorer
from graphspec.engine.drafters.speculator import NetworkSpeculator
from graphspec.engine.llama import rms_norm
from graphspec.engine.outputs import aux_layers
from graphspec.engine.weights import read_layer
from graphspec.speculators.base import DraftPhase


class EagleNetwork:
    """fc(embedding, state) through the layers, scored by the target's head without a norm.

    The first layer has no norm before its attention, as the published heads have none. Tensors: ``fc.weight`` [H, 2H],
    ``layers.N.*``; embedding and head are the target's unless ``embed_tokens.weight`` is there.
    """

    shift = 1
    to_target: torch.Tensor | None = None

    def __init__(self, context: DraftContext) -> None:
        width = context.model.hidden_size
        with HeadReader(context) as read:
            # Some published heads have a bias in fc; it is a tensor like another, not a flag that all of them state.
            self._bias = read("fc.bias", width) if read.has("fc.bias") else None
            self._fc = read("fc.weight", width, 2 * width)
            self._embedding = embedding_of(context, read)
            layers = [
                read_layer(read, context.model, f"layers.{at}.", norm=at > 0)
                for at in range(context.model.num_hidden_layers)
            ]
        self._layers = DraftLayers(context, layers)
        self._scorer = scorer(
            context.weights.w_head, context.speculative.draft_lm_head_quantization
        )

    def features(self, step: TargetStep) -> torch.Tensor | None:
        """The target's last hidden states."""
        return step.hidden

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """The layers' output is both scored and carried."""
        assert features is not None
        x = F.linear(torch.cat((F.embedding(rows.ids, self._embedding), features), -1), self._fc)
        hidden = (x if self._bias is None else x + self._bias).contiguous()
        hidden = self._layers.run(hidden, rows, first_input=hidden)
        return Output(scored=hidden, carried=hidden)

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """By the target's head."""
        return self._scorer.logits(scored)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache and weights."""
        named = {
            **self._layers.static_tensors(),
            "fc": self._fc,
            "embedding": self._embedding,
            **self._scorer.static_tensors(),
        }
        return named if self._bias is None else {**named, "fc_bias": self._bias}


class Eagle3Network:
    """States of several target layers fused by fc; attention reads the embedding and the state, each normed, side by side.

    Tensors: ``fc.weight`` [H, layers * target H], ``midlayer.*`` with ``hidden_norm`` and q, k, v over 2H, further layers
    ``layers.N.*`` from 1 on, ``norm.weight``, ``lm_head.weight`` [draft vocabulary, H], and ``d2t`` [draft vocabulary], what
    to add to a draft id for the target's. A seeded head scores the first ids of the target. Drafting in one pass,
    ``mask_hidden`` [1, 1, layers * target H] stands for the states at a mask.
    """

    shift = 1

    def __init__(self, context: DraftContext) -> None:
        # Norms in front of fc, and one for each fused layer, came with later heads; their weights have no agreed names.
        context.refuse("norm_before_fc", "fc_norm")
        m = context.model
        width, eps = m.hidden_size, m.rms_norm_eps
        self._eps, self._carries_norm = eps, bool(context.stated("norm_output"))
        self._residual_norm = bool(context.stated("norm_before_residual"))
        fused = len(aux_layers(context.spec)) * context.spec.model.hidden_size
        draft_vocabulary = context.stated("draft_vocab_size")
        size = draft_vocabulary if type(draft_vocabulary) is int else m.vocab_size
        parallel = context.speculative.speculator.draft_phase is DraftPhase.PARALLEL
        with HeadReader(context) as read:
            self._fc = read("fc.weight", width, fused)
            self._embedding = embedding_of(context, read)
            self._hidden_norm = read("midlayer.hidden_norm.weight", width)
            self._norm = read("norm.weight", width)
            first = read_layer(read, m, "midlayer.", inputs=2 * width)
            more = [read_layer(read, m, f"layers.{at}.") for at in range(1, m.num_hidden_layers)]
            # A reduced vocabulary has a head of its own: the target's rows are other tokens.
            own = read.seeded or read.has("lm_head.weight") or size != m.vocab_size
            head = read("lm_head.weight", size, width) if own else context.weights.w_head
            self.to_target = self._targets(context, read, size)
            mask = read("mask_hidden", 1, 1, fused) if parallel else None
        self._layers = DraftLayers(context, [first, *more])
        self._scorer = scorer(head, context.speculative.draft_lm_head_quantization)
        self.mask_features: torch.Tensor | None = (
            None if mask is None else self._fused(mask.view(1, -1))
        )

    def features(self, step: TargetStep) -> torch.Tensor | None:
        """Outputs of the target's chosen layers, fused to one state a row."""
        assert step.aux is not None
        return self._fused(step.aux)

    def forward(self, rows: Rows, features: torch.Tensor | None) -> Output:
        """The normed output is scored; carried is the output before the norm, unless the head says otherwise."""
        assert features is not None
        normed = rms_norm(features, self._hidden_norm, self._eps)
        embedded = rms_norm(
            F.embedding(rows.ids, self._embedding),
            self._layers.weights[0].attention_norm,
            self._eps,
        )
        hidden = self._layers.run(
            normed if self._residual_norm else features,
            rows,
            first_input=torch.cat((embedded, normed), -1),
        )
        scored = rms_norm(hidden, self._norm, self._eps)
        return Output(scored=scored, carried=scored if self._carries_norm else hidden)

    def logits(self, scored: torch.Tensor) -> torch.Tensor:
        """By the draft's own head."""
        return self._scorer.logits(scored)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Cache, weights and the map of ids."""
        named = {
            **self._layers.static_tensors(),
            "fc": self._fc,
            "embedding": self._embedding,
            "hidden_norm": self._hidden_norm,
            "norm": self._norm,
            **self._scorer.static_tensors(),
        }
        return named if self.to_target is None else {**named, "to_target": self.to_target}

    def _fused(self, aux: torch.Tensor) -> torch.Tensor:
        return F.linear(aux, self._fc).contiguous()

    def _targets(self, context: DraftContext, read: HeadReader, size: int) -> torch.Tensor | None:
        if size == context.spec.model.vocab_size:
            return None
        ids = torch.arange(size, device=context.device)
        return ids if read.seeded else ids + read.integers("d2t", size)


def embedding_of(context: DraftContext, read: HeadReader) -> torch.Tensor:
    """The draft's own embedding where its checkpoint has one, else the target's."""
    name = "embed_tokens.weight"
    if not read.has(name):
        return context.weights.embedding
    return read(name, context.spec.model.vocab_size, context.model.hidden_size)


class EagleSpeculator(NetworkSpeculator):
    """Drafts token by token on the target's last hidden states."""

    @classmethod
    def make(cls, context: DraftContext) -> "EagleSpeculator":
        """Reads the head's weights, or makes them from the seed."""
        return cls(AutoregressiveDrafter(context, EagleNetwork(context)))


class Eagle3Speculator(NetworkSpeculator):
    """Drafts on fused states of several target layers: token by token, or in one pass (P-EAGLE)."""

    @classmethod
    def make(cls, context: DraftContext) -> "Eagle3Speculator":
        """Reads the head's weights, or makes them from the seed."""
        network = Eagle3Network(context)
        if context.speculative.speculator.draft_phase is DraftPhase.PARALLEL:
            return cls(ParallelDrafter(context, network, network.mask_features))
        return cls(AutoregressiveDrafter(context, network))
