"""How long does a second ``graphspec warmup`` of the example take, beyond importing torch and reading weights?

Runs the command in fresh processes on a warm cache, and in the same run measures what bounds it: the products of one
decode step per captured graph, twice (once eagerly, once replayed), as plain ``torch.mm`` over the same weights.
"""

import argparse
import tempfile

from common import THREADS, fresh, machine, median, write

CHILD = "second_warmup_child.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cache-dir", default=None, help="a cache folder; default: a temporary one"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = {"GRAPHSPEC_CACHE_DIR": asked.cache_dir or folder}
        cold = fresh(CHILD, "warmup", **where)
        pairs = [
            (fresh(CHILD, "warmup", **where), fresh(CHILD, "products")) for _ in range(asked.rounds)
        ]
    warm, products = [w for w, _ in pairs], [p for _, p in pairs]
    assert all(w["compiled"] == 0 and not w["inductor_loaded"] for w in warm)
    beyond, bound = median(warm, "beyond_s"), median(products, "products_s")
    print(f"cold: {cold['wall_s']:.1f} s, compiled {cold['compiled']}")
    print(f"warm: {median(warm, 'wall_s'):.2f} s in all, compiled 0, torch._inductor not loaded")
    print(
        f"  importing torch {median(warm, 'torch_s'):.2f} s, weights {median(warm, 'weights_s'):.2f} s"
    )
    print(f"  loading the units {median(warm, 'units_s') * 1000:.1f} ms")
    print(f"  beyond torch and weights {beyond:.2f} s (target 1.5 s)")
    print(f"bound: products of the captured steps, eager and replayed: {bound:.2f} s")
    print(
        f"one row over all weights: {median(products, 'one_row_s') * 1000:.0f} ms, {THREADS} threads"
    )
    write(
        "second_warmup",
        {
            "machine": machine(),
            "beyond_s": beyond,
            "products_bound_s": bound,
            "cold": cold,
            "warm": warm,
            "products": products,
        },
    )


if __name__ == "__main__":
    main()
