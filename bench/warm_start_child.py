"""One start, measured: ``ours`` or ``theirs``. Prints one JSON line."""

import json
import sys
import time


def random_weights(model):
    import torch

    from graphspec.engine.weights import LayerWeights, Weights, for_products

    width, inner = model.hidden_size, model.intermediate_size
    heads = model.num_attention_heads + 2 * model.num_key_value_heads

    def tensor(*shape):
        return for_products(torch.randn(shape) * 0.02)

    layers = tuple(
        LayerWeights(
            attention_norm=torch.ones(width),
            w_qkv=tensor(heads * model.head_dim, width),
            w_o=tensor(width, model.num_attention_heads * model.head_dim),
            mlp_norm=torch.ones(width),
            w_gate_up=tensor(2 * inner, width),
            w_down=tensor(width, inner),
        )
        for _ in range(model.num_hidden_layers)
    )
    embedding = tensor(model.vocab_size, width)
    return Weights(
        embedding=embedding, layers=layers, final_norm=torch.ones(width), w_head=embedding
    )


def our_units(spec, program):
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.folder.locks import KeyLocks
    from graphspec.cache.load import load_or_compile
    from graphspec.cache.location import cache_folder

    root = cache_folder()
    artifacts, results = load_or_compile(program.units(), spec, DiskStore(root), KeyLocks(root))
    return artifacts, sum(r.compiled for r in results)


def their_units(spec, program):
    import torch

    from graphspec.cache.units import DynamicDim

    def compiled(unit):
        function = torch.compile(unit.build(spec), fullgraph=True)
        # Only the token dimension is dynamic: dynamic=True would also make the model's constants symbols, and restart.
        rows = [i for i, t in enumerate(unit.inputs) if isinstance(t.shape[0], DynamicDim)]

        def call(*tensors):
            for i in rows:
                torch._dynamo.mark_dynamic(tensors[i], 0)
            made = function(*tensors)
            return made if isinstance(made, tuple) else (made,)

        return call

    return {unit.name: compiled(unit) for unit in program.units()}, 0


def cache_counters():
    """How torch's own caches were hit, where its compiler is loaded: proof that the hot runs were hot."""
    if "torch._dynamo" not in sys.modules:
        return {}
    from torch._dynamo.utils import counters

    names = ("fxgraph_cache_hit", "fxgraph_cache_miss", "autograd_cache_hit", "autograd_cache_miss")
    return {
        n: counters[part][n]
        for part in ("inductor", "aot_autograd")
        for n in names
        if n in counters[part]
    }


def main() -> None:
    import torch

    import graphspec
    from graphspec.capture.keys import CaptureKey, Phase
    from graphspec.capture.program import load_program
    from graphspec.engine.executor import Executor

    torch.manual_seed(0)
    spec = graphspec.load("examples/smollm2-ngram.yaml")
    weights = random_weights(spec.model)
    key = CaptureKey(Phase.TARGET_VERIFY, 4, 1)
    make = our_units if sys.argv[1] == "ours" else their_units
    began = time.perf_counter()
    if sys.argv[1] == "ours":
        spec = graphspec.load("examples/smollm2-ngram.yaml")
    artifacts, compiled = make(spec, load_program(spec))
    ready = time.perf_counter()
    executor = Executor(spec, weights, artifacts)
    executor.fill_example(key, 0)
    with torch.no_grad():
        executor.step(key)
    done = time.perf_counter()
    with torch.no_grad():
        executor.step(key)
    print(
        json.dumps(
            {
                "ready_s": ready - began,
                "total_s": done - began,
                "second_step_s": time.perf_counter() - done,
                "compiled": compiled,
                "inductor_loaded": "torch._inductor" in sys.modules,
                "cache_counters": cache_counters(),
            }
        )
    )


if __name__ == "__main__":
    main()
