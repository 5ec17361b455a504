"""The process of bench/engine.py: our engine and transformers on the same weights, in turn. Prints one JSON line."""

import copy
import json
import os
import random
import sys
import time
from contextlib import contextmanager
from pathlib import Path

# The interpreter was started with -P: scripts see installed packages alone.
sys.path.append(str(Path(__file__).parent))

from engine_prompts import PROMPTS

CONFIG = "examples/smollm2-ngram.yaml"
THREADS = 2


def engines(spec) -> dict:
    """Ready engines with and without drafts, which share the weights' file and nothing else."""
    from graphspec.engine.llm import LLM

    return {"ngram": LLM(spec), "plain": LLM(spec.without_speculation())}


def hugging_face(spec, weights):
    """The same weights as a model of transformers: `weights` is split into the tensors that it names."""
    import torch
    import transformers

    m = spec.model
    config = transformers.LlamaConfig(
        vocab_size=m.vocab_size,
        hidden_size=m.hidden_size,
        intermediate_size=m.intermediate_size,
        num_hidden_layers=m.num_hidden_layers,
        num_attention_heads=m.num_attention_heads,
        num_key_value_heads=m.num_key_value_heads,
        head_dim=m.head_dim,
        rms_norm_eps=m.rms_norm_eps,
        rope_theta=m.rope_theta,
        max_position_embeddings=m.max_model_len,
        tie_word_embeddings=m.tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    q, kv = m.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.w_head,
    }
    for at, layer in enumerate(weights.layers):
        p = f"model.layers.{at}."
        wq, wk, wv = layer.w_qkv.split((q, kv, kv))
        gate, up = layer.w_gate_up.chunk(2)
        state |= {
            p + "input_layernorm.weight": layer.attention_norm,
            p + "self_attn.q_proj.weight": wq,
            p + "self_attn.k_proj.weight": wk,
            p + "self_attn.v_proj.weight": wv,
            p + "self_attn.o_proj.weight": layer.w_o,
            p + "post_attention_layernorm.weight": layer.mlp_norm,
            p + "mlp.gate_proj.weight": gate,
            p + "mlp.up_proj.weight": up,
            p + "mlp.down_proj.weight": layer.w_down,
        }
    # Row after row, as transformers loads them.
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert not missing, missing
    assert not unexpected, unexpected
    # What is computed at construction stays on the meta device otherwise.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def bound_ms(weights) -> float:
    """What reading the weights' bytes takes at the rate of the machine's best matrix-vector product, in milliseconds."""
    import torch

    size = sum(w.numel() * w.element_size() for w in weights)
    best = float("inf")
    for width in (576, 1536, 4096):
        big = torch.ones(size // (4 * width), width)
        vector = torch.ones(width)
        torch.mv(big, vector)
        began = time.perf_counter()
        torch.mv(big, vector)
        best = min(best, (time.perf_counter() - began) * 1000)
    return best


@contextmanager
def timed_parts(executor, parts: dict):
    """Adds to `parts` the seconds in compiled units and in attention, for steps that run in pieces."""
    import graphspec.engine.executor as module

    names = ("_input", "_output", "_head")
    kept, attend = {n: getattr(executor, n) for n in names}, module.paged_attention

    def watched(function):
        def call(*args):
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                parts["s"] = parts.get("s", 0.0) + time.perf_counter() - began

        return call

    for name, function in kept.items():
        setattr(executor, name, watched(function))
    module.paged_attention = watched(attend)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(executor, name, function)
        module.paged_attention = attend


def main() -> None:
    rounds, new_tokens, prompts = map(int, sys.argv[1:4])
    import torch

    torch.set_num_threads(THREADS)

    import graphspec
    from graphspec.engine.sampling import SamplingParams

    spec = graphspec.load(CONFIG)
    made = engines(spec)
    ngram, plain = made["ngram"], made["plain"]
    source = plain._ready.source
    theirs = hugging_face(spec, source.weights)
    texts = list(PROMPTS.values())[:prompts]
    ids = [plain.tokenizer.encode(t) for t in texts]

    def params(salt: str):
        # A salt of its own: no prompt may be found in the prefix cache.
        return SamplingParams(max_tokens=new_tokens, ignore_eos=True, cache_salt=salt)

    count = iter(range(10**9))

    def ours(engine, batch: int) -> float:
        began = time.perf_counter()
        for at in range(0, len(ids), batch):
            engine.generate(ids[at : at + batch], params(str(next(count))))
        return new_tokens * len(ids) / (time.perf_counter() - began)

    def transformers_(batch: int, **more) -> float:
        options = {
            "do_sample": False,
            "max_new_tokens": new_tokens,
            "min_new_tokens": new_tokens,
            **more,
        }
        began = time.perf_counter()
        with torch.inference_mode():
            for at in range(0, len(ids), batch):
                part = ids[at : at + batch]
                longest = max(map(len, part))
                padded = torch.tensor([[0] * (longest - len(p)) + p for p in part])
                mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part])
                out = theirs.generate(padded, attention_mask=mask, **options)
                assert out.shape[1] == longest + new_tokens
        return new_tokens * len(ids) / (time.perf_counter() - began)

    eight = min(8, len(ids))
    ways = {
        "plain, batch 1": lambda: ours(plain, 1),
        "ngram, batch 1": lambda: ours(ngram, 1),
        "plain, batch 8": lambda: ours(plain, eight),
        "ngram, batch 8": lambda: ours(ngram, eight),
        "transformers, batch 1": lambda: transformers_(1),
        "transformers, batch 8": lambda: transformers_(eight),
        "transformers prompt lookup": lambda: transformers_(
            1, prompt_lookup_num_tokens=spec.num_speculative_tokens
        ),
    }
    same(plain, theirs, ids[0])
    for way in ways.values():
        # Once unmeasured: what is allocated at first use.
        way()
    before = copy.copy(ngram.counts)
    compiled, captured = compiles(), len(ngram._ready.manager.captured)
    samples = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            samples[name].append(ways[name]())
    after = ngram.counts
    steps, bounds = [], []
    for _ in range(5):
        bounds.append(bound_ms(list(source.weights.by_name.values())))
        steps.append(step_ms(plain, ids[0], 1))
    step16, inside = 0.0, 0.0
    parts: dict = {}
    generator = plain.engine
    sixteen = [(ids * 2)[at % len(ids)] for at in range(16)]
    step16, inside = overhead(generator, sixteen, params(str(next(count))), parts)
    print(
        json.dumps(
            {
                "tokens_per_s": samples,
                "acceptance": {
                    "tokens": after.accepted_tokens
                    + after.drafts
                    - before.accepted_tokens
                    - before.drafts,
                    "steps": after.drafts - before.drafts,
                },
                "step_ms": steps,
                "bound_ms": bounds,
                "step16_ms": step16 * 1000,
                "overhead": 1 - inside / step16,
                "compiled": compiles() - compiled,
                "captured": len(ngram._ready.manager.captured) - captured,
                "load": os.getloadavg(),
            }
        )
    )


def same(llm, theirs, ids) -> None:
    """Both engines run the same model: their first tokens agree."""
    import torch

    from graphspec.engine.sampling import SamplingParams

    mine = llm.generate([ids], SamplingParams(max_tokens=8, ignore_eos=True))[0].tokens
    with torch.inference_mode():
        out = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=8)
    assert list(mine) == out[0, len(ids) :].tolist(), (mine, out[0, len(ids) :].tolist())


def compiles() -> int:
    """Graphs that Dynamo or inductor compiled in this process."""
    import torch

    if "torch._dynamo" not in sys.modules:
        return 0
    return sum(torch._dynamo.utils.counters["inductor"].values()) + sum(
        torch._dynamo.utils.counters["stats"].values()
    )


def step_ms(llm, ids, batch: int, steps: int = 24) -> float:
    """Median milliseconds of a decode step, without the prompt's."""
    import statistics

    from graphspec.engine.sampling import SamplingParams

    engine = llm.engine
    params = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
    for _ in range(batch):
        engine.add(ids, params)
    taken = []
    while True:
        decoding = (
            all(not r.prefilling for r in engine.scheduler.running) and engine.scheduler.running
        )
        began = time.perf_counter()
        if engine.step() is None:
            return statistics.median(taken) * 1000
        if decoding:
            taken.append(time.perf_counter() - began)


def overhead(engine, prompts, params, parts: dict) -> tuple[float, float]:
    """Seconds of a decode step of all prompts, run in pieces, and of these the seconds in units and attention."""
    for prompt in prompts:
        engine.add(prompt, params)
    while any(r.prefilling for r in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    whole, steps = 0.0, 8
    with timed_parts(engine._executor, parts), eager(engine):
        for _ in range(steps):
            began = time.perf_counter()
            engine.step()
            whole += time.perf_counter() - began
    for request in [r.id for r in engine.scheduler.running]:
        engine.abort(request)
    return whole / steps, parts["s"] / steps


@contextmanager
def eager(engine):
    """Steps run in pieces, so that the time in each piece can be taken: a replayed graph is one call."""
    import attrs

    scheduler = engine.scheduler
    route = scheduler._route
    scheduler._route = lambda step: attrs.evolve(route(step), key=None)
    try:
        yield
    finally:
        scheduler._route = route


if __name__ == "__main__":
    main()
