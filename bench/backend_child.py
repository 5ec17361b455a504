"""One start of a small model through torch.compile with a backend, measured. Prints one JSON line."""

import json
import sys
import time


def model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    width, heads, inner = 64, 4, 176

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (
                part.view(batch, length, heads, -1).transpose(1, 2)
                for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            y = self.norms[1](x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(4))).eval(), torch.randn(2, 16, width)


def calls(function, given, count):
    """Microseconds of one call, the fastest of some."""
    best = float("inf")
    for _ in range(count):
        began = time.perf_counter()
        function(given)
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def main() -> None:
    backend = sys.argv[1]
    import torch

    net, given = model()
    with torch.no_grad():
        began, began_cpu = time.perf_counter(), time.process_time()
        compiled = torch.compile(net, backend=backend)
        output = compiled(given)
        first, first_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        error = float((output - net(given)).abs().max())
        call = calls(compiled, given, 200)
    outcomes = []
    if backend == "graphspec":
        from graphspec.cache.dynamo.backend import results

        outcomes = [(r.outcome.value, r.reason, r.compiled, r.seconds) for r in results()]
    made = "torch._inductor.graph" in sys.modules
    print(
        json.dumps(
            {
                "first_s": first,
                "first_cpu_s": first_cpu,
                "call_us": call,
                "error": error,
                "outcomes": outcomes,
                "inductor_loaded": made,
            }
        )
    )


if __name__ == "__main__":
    main()
