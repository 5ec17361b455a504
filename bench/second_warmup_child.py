"""One warmup, or the products that bound it, measured. Prints one JSON line."""

import json
import sys
import time

CONFIG = "examples/smollm2-ngram.yaml"


def warmup() -> dict:
    began = time.perf_counter()
    import torch  # noqa: F401

    imported = time.perf_counter()
    import click

    import graphspec.cli.warmup as command
    from graphspec.cli import common

    printed = []
    command.print_json = printed.append
    code = common.run(
        click.Group(commands={"warmup": command.warmup}), ["warmup", "--config", CONFIG, "--json"]
    )
    ended = time.perf_counter()
    report = printed[0]
    assert code == 0, report
    return {
        "wall_s": ended - began,
        "torch_s": imported - began,
        "weights_s": report["phases"]["weights"],
        "units_s": report["phases"]["units"],
        "beyond_s": ended - imported - report["phases"]["weights"],
        "phases": report["phases"],
        "compiled": report["compiled"],
        "inductor_loaded": "torch._inductor" in sys.modules,
    }


def products() -> dict:
    import torch

    import graphspec
    from graphspec.capture.plan import plan_capture

    spec = graphspec.load(CONFIG)
    m = spec.model
    attended = m.num_attention_heads * m.head_dim
    qkv = attended + 2 * m.num_key_value_heads * m.head_dim
    shapes = [(qkv, m.hidden_size), (m.hidden_size, attended)]
    shapes += [(2 * m.intermediate_size, m.hidden_size), (m.hidden_size, m.intermediate_size)]
    weights = [torch.randn(s) for _ in range(m.num_hidden_layers) for s in shapes]
    weights.append(torch.randn(m.vocab_size, m.hidden_size))
    rows = {n: torch.ones(512, n) for n in {w.shape[1] for w in weights}}

    def step(tokens: int) -> float:
        began = time.perf_counter()
        for w in weights:
            torch.mm(w, rows[w.shape[1]][:tokens].t())
        return time.perf_counter() - began

    sizes = [key.tokens for key in plan_capture(spec).keys]
    step(1)
    return {
        "products_s": 2 * sum(step(t) for t in sizes),
        "one_row_s": min(step(1) for _ in range(3)),
    }


if __name__ == "__main__":
    print(json.dumps({"warmup": warmup, "products": products}[sys.argv[1]]()))
