"""How near verification on the host comes to the machine's memory, and how far it is from the plain reference.

64 requests of 4 drafts over 49,152 tokens in float32, drafts that are nearly always kept, so that every row has to be read
once. All ways are taken in turn in one process, with pinned threads; ratios are of medians. A copy of the logits stands for
the machine: its bandwidth is what it reads and writes.
"""

import argparse
import os
import statistics
import time

import torch
from common import THREADS, machine, write

from graphspec.config.speculative import RejectionSampleMethod as Method
from graphspec.kernels import FlyRule, Sampling, verify_drafts, warm_verify
from graphspec.kernels.verify_reference import verify as reference
from graphspec.kernels.verify_values import VerifyJob

REQUESTS, K, VOCAB = 64, 4, 49_152
COPY_TARGET, REFERENCE_TARGET = 0.5, 3.0
REFERENCE_ROUNDS = 3


def inputs() -> dict:
    """Logits whose drafts are nearly sure, and draft probabilities."""
    make = torch.Generator().manual_seed(0)
    rows = REQUESTS * (K + 1)
    logits = torch.randn(rows, VOCAB, generator=make) * 2
    decided = torch.arange(rows).reshape(REQUESTS, K + 1)[:, :K].flatten()
    drafts = logits[decided].argmax(-1)
    logits[decided, drafts] += 25
    q = torch.softmax(torch.randn(REQUESTS * K, VOCAB, generator=make), -1)
    return {
        "logits": logits,
        "drafts": drafts,
        "cu_drafts": torch.arange(REQUESTS + 1) * K,
        "draft_probs": q,
    }


def sampling(temperature: float, **filters: float) -> Sampling:
    every = {name: [value] * REQUESTS for name, value in filters.items()}
    return Sampling.of(temperature=[temperature] * REQUESTS, seed=range(REQUESTS), **every)


def job(given: dict, settings: Sampling, method: int, q: torch.Tensor | None) -> VerifyJob:
    return VerifyJob(
        logits=given["logits"],
        drafts=given["drafts"],
        cu_drafts=given["cu_drafts"],
        draft_probs=q,
        sampling=settings,
        methods=torch.full((REQUESTS,), method, dtype=torch.int8),
        fly=FlyRule(window=1),
        chances=torch.zeros(K, dtype=torch.float64),
        max_drafts=K,
        vocab=VOCAB,
    )


def ways(given: dict) -> dict:
    """Name -> (action, bytes that it has to read once)."""
    logits, q = given["logits"], given["draft_probs"]
    copy, row = torch.empty_like(logits), VOCAB * 4
    read = logits.shape[0] * row
    greedy, plain, top_p = sampling(0), sampling(1.0), sampling(1.0, top_p=0.9)

    def host(settings: Sampling, method: Method = Method.STANDARD, dense: bool = False):
        def call():
            return verify_drafts(
                logits,
                given["drafts"],
                given["cu_drafts"],
                sampling=settings,
                methods=method,
                draft_probs=q if dense else None,
                implementation="cpu",
            )

        return call

    kept = int(host(plain)().counts.sum())
    assert kept == logits.shape[0], f"only {kept} of {logits.shape[0]} rows have to be read"
    standard, block = (job(given, plain, 0, None), job(given, plain, 1, q))
    return {
        "copy": (lambda: copy.copy_(logits), 2 * read),
        "greedy": (host(greedy), read),
        "standard, sure drafts": (host(plain), read),
        "standard, draft probabilities": (host(plain, dense=True), read),
        "block, draft probabilities": (
            host(plain, Method.BLOCK, dense=True),
            read + REQUESTS * (K - 1) * row,
        ),
        "standard, top-p 0.9": (host(top_p), read),
        "reference float64, standard": (lambda: reference(standard), read),
        "reference float32, standard": (lambda: reference(standard, torch.float32), read),
        "reference float32, block": (lambda: reference(block, torch.float32), read),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    warmed = warm_verify()
    measured = ways(inputs())
    samples: dict[str, list[float]] = {name: [] for name in measured}
    for at in range(asked.rounds):
        for name, (action, _) in measured.items():
            if name.startswith("reference") and at >= REFERENCE_ROUNDS:
                # Seconds each, and hundreds of times what they are compared with: three tell.
                continue
            began = time.perf_counter()
            action()
            samples[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    rate = {name: size / seconds[name] for name, (_, size) in measured.items()}
    print(f"threads {THREADS}, load {os.getloadavg()}, compiled in {warmed:.1f} s")
    results = {}
    for name in measured:
        results[name] = {
            "ms": seconds[name] * 1000,
            "least_ms": min(samples[name]) * 1000,
            "gb_per_s": rate[name] / 1e9,
            "of_copy": rate[name] / rate["copy"],
        }
        print(
            f"{name}: {seconds[name] * 1000:.1f} ms, {rate[name] / 1e9:.1f} GB/s, "
            f"{rate[name] / rate['copy']:.2f} of a copy's bandwidth"
        )
    faster = {
        dtype: seconds[f"reference {dtype}, standard"] / seconds["standard, sure drafts"]
        for dtype in ("float32", "float64")
    }
    print(f"standard, faster than the reference: {faster}")
    print(f"targets: {COPY_TARGET} of a copy, {REFERENCE_TARGET} times the reference")
    write(
        "kernels",
        {
            "machine": machine(),
            "rounds": asked.rounds,
            "reference_rounds": min(asked.rounds, REFERENCE_ROUNDS),
            "requests": REQUESTS,
            "k": K,
            "vocab": VOCAB,
            "compile_seconds": warmed,
            "targets": {"of_copy": COPY_TARGET, "times_the_reference": REFERENCE_TARGET},
            "verification": results,
            "times_the_reference": faster,
        },
    )


if __name__ == "__main__":
    main()
