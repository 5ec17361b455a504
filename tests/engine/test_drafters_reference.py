"""Each network is its paper's: drafts equal those of plain dense attention over the whole text, without a cache or pages."""

import pytest
import torch
from torch.nn import functional as F

from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.protocol import Computed
from support.drafters import K, States, context_of, engine_spec

LENGTH = 17
MASK = 95


class Dense:
    """The pieces of a head, from the same tensors, in the plainest form."""

    def __init__(self, spec):
        self.context = context_of(spec)
        self.read, self.m = HeadReader(self.context), self.context.model
        self.h = self.m.hidden_size
        made = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(0, 96, (LENGTH,), generator=made).tolist()
        self.embedding = self.context.weights.embedding
        states = States(spec)
        self.rows = states.of(self.tokens, range(LENGTH - 1))
        self.hidden, self.aux = self.rows[:, : self.h], self.rows[:, self.h :]
        request = Computed(
            request=0,
            tokens=tuple(self.tokens),
            first=0,
            count=LENGTH - 1,
            row=0,
            blocks=range(1, 20),
            wanted=K,
        )
        self.step = states.step([request], self.rows)

    def w(self, name, *shape):
        return self.read(name, *shape)

    def norm(self, x, name, width=None):
        y = x.double()
        y = y / (y.pow(2).mean(-1, keepdim=True) + self.m.rms_norm_eps).sqrt()
        return y.float() * self.w(name, width or self.h)

    def turned(self, x, positions):
        """Rotary embedding of [heads, T, D]."""
        half = self.m.head_dim // 2
        angle = positions[:, None] * self.m.rope_theta ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def heads(self, x, name, count, positions=None, norm=None):
        """[T, in] -> [heads, T, D], normed and rotated as asked."""
        y = x @ self.w(name, count * self.m.head_dim, x.shape[1]).t()
        y = y.unflatten(1, (count, self.m.head_dim)).transpose(0, 1)
        y = y if norm is None else self.norm(y, norm, self.m.head_dim)
        return y if positions is None else self.turned(y, positions)

    def keys(self, x, prefix, positions, norm=None):
        """Keys and values of [T, in]."""
        count = self.m.num_key_value_heads
        p = prefix + "self_attn."
        return (
            self.heads(x, p + "k_proj.weight", count, positions, norm and p + norm),
            self.heads(x, p + "v_proj.weight", count),
        )

    def layer(self, prefix, hidden, x, positions, seen, context=None, qwen=False):
        """One decoder layer; `x` is its attention's input, `seen` [T, all] the mask, `context` keys and values before."""
        p, m = prefix + "self_attn.", self.m
        q = self.heads(
            x,
            p + "q_proj.weight",
            m.num_attention_heads,
            positions,
            p + "q_norm.weight" if qwen else None,
        )
        k, v = self.keys(x, prefix, positions, "k_norm.weight" if qwen else None)
        if context is not None:
            k, v = torch.cat((context[0], k), 1), torch.cat((context[1], v), 1)
        each = m.num_attention_heads // m.num_key_value_heads
        out = F.scaled_dot_product_attention(
            q, k.repeat_interleave(each, 0), v.repeat_interleave(each, 0), attn_mask=seen
        )
        out = out.transpose(0, 1).flatten(1)
        out = out @ self.w(p + "o_proj.weight", self.h, out.shape[1]).t()
        hidden = hidden + out
        y = self.norm(hidden, prefix + "post_attention_layernorm.weight")
        inner = m.intermediate_size
        gate = F.silu(y @ self.w(prefix + "mlp.gate_proj.weight", inner, self.h).t())
        up = y @ self.w(prefix + "mlp.up_proj.weight", inner, self.h).t()
        return hidden + (gate * up) @ self.w(prefix + "mlp.down_proj.weight", self.h, inner).t()

    def linear(self, x, name, *shape):
        return x @ self.w(name, *shape).t()


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def eagle(d):
    """EAGLE: states grow by the head's own outputs, and the whole sequence is run again for each draft."""
    states, tokens = d.hidden, d.tokens[1:]
    for _ in range(K):
        x = torch.cat((d.embedding[torch.tensor(tokens)], states), -1)
        x = d.linear(x, "fc.weight", d.h, 2 * d.h)
        out = d.layer("layers.0.", x, x, torch.arange(len(x)), causal(len(x)))
        tokens = [*tokens, int((out[-1] @ d.context.weights.w_head.t()).argmax())]
        states = torch.cat((states, out[-1:]))
    return tokens[-K:]


def eagle3(d):
    """EAGLE-3: fused states and embeddings normed apart; the output before the norm is carried."""
    states, tokens = d.linear(d.aux, "fc.weight", d.h, d.aux.shape[1]), d.tokens[1:]
    for _ in range(K):
        x = torch.cat(
            (
                d.norm(d.embedding[torch.tensor(tokens)], "midlayer.input_layernorm.weight"),
                d.norm(states, "midlayer.hidden_norm.weight"),
            ),
            -1,
        )
        out = d.layer("midlayer.", states, x, torch.arange(len(x)), causal(len(x)))
        logits = d.linear(d.norm(out[-1:], "norm.weight"), "lm_head.weight", 96, d.h)
        tokens = [*tokens, int(logits.argmax())]
        states = torch.cat((states, out[-1:]))
    return tokens[-K:]


def peagle(d):
    """P-EAGLE: one pass, with the mask's token and states in place of drafts and their states."""
    fused = d.aux.shape[1]
    mask = d.w("mask_hidden", 1, 1, fused).view(1, -1).expand(K - 1, -1)
    states = d.linear(torch.cat((d.aux, mask)), "fc.weight", d.h, fused)
    tokens = torch.tensor([*d.tokens[1:], *[MASK] * (K - 1)])
    x = torch.cat(
        (
            d.norm(d.embedding[tokens], "midlayer.input_layernorm.weight"),
            d.norm(states, "midlayer.hidden_norm.weight"),
        ),
        -1,
    )
    n = len(x)
    out = d.layer("midlayer.", states, x, torch.arange(n), causal(n))
    y = d.norm(out, "layers.1.input_layernorm.weight")
    out = d.norm(d.layer("layers.1.", out, y, torch.arange(n), causal(n)), "norm.weight")
    return d.linear(out[-K:], "lm_head.weight", 96, d.h).argmax(-1).tolist()


def pard(d):
    """PARD: a whole model over the text and masks behind it."""
    embedding = d.w("model.embed_tokens.weight", 96, d.h)
    hidden = embedding[torch.tensor([*d.tokens, *[MASK] * (K - 1)])]
    n = len(hidden)
    for at in range(d.m.num_hidden_layers):
        prefix = f"model.layers.{at}."
        x = d.norm(hidden, prefix + "input_layernorm.weight")
        hidden = d.layer(prefix, hidden, x, torch.arange(n), causal(n))
    return (d.norm(hidden, "model.norm.weight") @ embedding.t())[-K:].argmax(-1).tolist()


def mtp(d, modules):
    """MTP: module j reads the states of module j - 1 and tokens j further; the last one goes on by itself."""
    states, drafts = d.hidden, []
    for j in range(1, K + 1):
        at = min(j, modules)
        prefix = f"model.mtp_layers.{at - 1}."
        tokens = torch.tensor([*d.tokens, *drafts][at : at + len(states)])
        embedded = d.embedding[tokens].clone()
        embedded[0] = 0
        both = torch.cat(
            (
                d.norm(states, prefix + "hidden_layernorm.weight"),
                d.norm(embedded, prefix + "token_layernorm.weight"),
            ),
            -1,
        )
        x = d.linear(both, prefix + "input_proj.weight", d.h, 2 * d.h)
        n = len(x)
        y = d.norm(x, prefix + "input_layernorm.weight")
        out = d.layer(prefix, x, y, torch.arange(n), causal(n))
        out = d.norm(out, prefix + "final_layernorm.weight")
        drafts.append(int((out[-1] @ d.context.weights.w_head.t()).argmax()))
        # The next module reads these states; the last one reads its own input again, longer by its output.
        states = out if j < modules else torch.cat((states, out[-1:]))
    return drafts


def block_states(d, queries):
    """DFlash: queries that see the context's states and one another, without any mask."""
    states = d.linear(d.aux, "fc.weight", d.h, d.aux.shape[1])
    states = d.norm(states, "hidden_norm.weight")
    before, n = torch.arange(LENGTH - 1), torch.arange(LENGTH - 1, LENGTH - 1 + queries)
    hidden = d.embedding[torch.tensor([d.tokens[-1], *[MASK] * (queries - 1)])]
    for at in range(d.m.num_hidden_layers):
        prefix = f"layers.{at}."
        context = d.keys(states, prefix, before, "k_norm.weight")
        x = d.norm(hidden, prefix + "input_layernorm.weight")
        hidden = d.layer(prefix, hidden, x, n, None, context, qwen=True)
    return d.norm(hidden, "norm.weight")


def dflash(d):
    """Masks give the drafts."""
    return (block_states(d, K + 1)[1:] @ d.context.weights.w_head.t()).argmax(-1).tolist()


def dspark(d, anchor):
    """The logits of each query, and what the draft before adds to them."""
    states = block_states(d, K)[:] if anchor else block_states(d, K + 1)[1:]
    w1, w2 = (d.w(f"markov_head.markov_w{i}.weight", 96, 4) for i in (1, 2))
    drafts, previous = [], d.tokens[-1]
    for logits in states @ d.context.weights.w_head.t():
        previous = int((logits + w2 @ w1[previous]).argmax())
        drafts.append(previous)
    return drafts


def medusa(d):
    """Each head on the last state alone."""
    drafts = []
    for at in range(K):
        x = d.hidden[-1:]
        bias = d.w(f"{at}.0.linear.bias", d.h)
        x = x + F.silu(d.linear(x, f"{at}.0.linear.weight", d.h, d.h) + bias)
        drafts.append(int(d.linear(x, f"{at}.1.weight", 96, d.h).argmax()))
    return drafts


REFERENCES = {
    "eagle": eagle,
    "eagle3": eagle3,
    "eagle3 parallel": peagle,
    "draft_model parallel": pard,
    "mtp": lambda d: mtp(d, 1),
    "mtp multi-module": lambda d: mtp(d, 2),
    "dflash": dflash,
    "dspark": lambda d: dspark(d, anchor=True),
    "dspark fill-in": lambda d: dspark(d, anchor=False),
    "medusa": medusa,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_drafts_are_those_of_dense_attention(tmp_path, name):
    """The same tensors, the same text, no cache: the same drafts."""
    spec = engine_spec(tmp_path, name)
    dense = Dense(spec)
    (proposal,) = make_drafter(dense.context).propose(dense.step)
    with torch.no_grad():
        assert list(proposal.tokens) == REFERENCES[name](dense)
