"""How long does a dispatch decision take, and how long the planning of all graphs?

Dispatch: decode steps of a sealed engine, batch sizes that go up and down, four tiers, 256 requests. In one run, taken in
turn, beside what a decision costs at least: a look into a plain dict with the same question, and a call that does
nothing. Each sample is the mean over one pass of 4096 questions, with the loop and the call around
them. Target: the median of `decode` at most 0.4 microseconds.

Planning: 1024 requests in 8 tiers with EAGLE drafts and 16384 tokens, from the contract to all keys, the reachable set
and the batch sizes that fall through; and the table of a sealed engine. Target: planning under 50 ms.

Replay: decode steps of the example's model at 1, 8 and 16 requests, replayed from the tape and run eagerly on the same
buffers, in turn. Target: the median of their ratio at most 1, as far as the rounds tell it from 1.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from common import fresh, machine, write
from resolve import HEAD, MODEL

from graphspec.capture.dispatch import Step
from graphspec.capture.keys import EVERY_KIND, FULL_VERIFY, GraphKind
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.routes import Routes
from graphspec.capture.sizes import tier_buckets
from graphspec.config.engine import EngineConfig
from graphspec.config.extras import LoRAConfig
from graphspec.config.schedule import dense_schedule
from graphspec.resolve.spec import EngineSpec

DISPATCH_TARGET_US, PLAN_TARGET_MS = 0.4, 50.0
QUESTIONS = 4096
"""Questions of one sample."""

FOUR_TIERS = [(1, 16, 7), (17, 32, 3), (33, 64, 2), (65, 256, 1)]
EIGHT_TIERS = [(1 + 128 * tier, 128 * (1 + tier), 8 - tier) for tier in range(8)]


def questions(plan: CapturePlan) -> list[tuple[int, int]]:
    """(requests, proposed k) of steps whose batch grows and shrinks by a few requests, and sometimes by many."""
    made, random_, most = [], random.Random(6), plan.schedule.max_num_seqs
    before = most // 4
    for _ in range(QUESTIONS):
        far = random_.random() < 0.02
        now = random_.randint(1, most) if far else before + random_.randint(-3, 3)
        now = min(max(now, 1), most)
        made.append((now, plan.schedule.k_for(before)))
        before = now
    return made


def pass_ns(action: Callable, asked: list[tuple]) -> float:
    """Nanoseconds a call, over one pass."""
    began = time.perf_counter_ns()
    for arguments in asked:
        action(*arguments)
    return (time.perf_counter_ns() - began) / len(asked)


def dispatch_us(rounds: int) -> dict:
    """Medians of each way of asking, in microseconds; and what the rounds lay between."""
    schedule = dense_schedule(FOUR_TIERS, 7, 256)
    plan = CapturePlan(schedule=schedule, buckets=tier_buckets(schedule))
    routes = Routes.of(plan, frozenset(plan.keys))
    pairs = questions(plan)
    table = {(k, b): routes.decode(b, k) for k in range(8) for b in range(1, 257)}
    steps = [(Step(requests=b, proposed_k=k, prefill=False),) for b, k in pairs]
    assert all(routes.decode(b, k).key is not None for b, k in pairs)
    ways = {
        "decode": (routes.decode, pairs),
        "route": (routes.route, steps),
        "dict lookup": (lambda b, k: table[k, b], pairs),
        "empty call": (lambda b, k: None, pairs),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (action, asked) in ways.items():
            samples[name].append(pass_ns(action, asked) / 1000)
    return {name: spread(taken) for name, taken in samples.items()}


def spec_of_1024(folder: Path) -> EngineSpec:
    """The contract of a Llama-3 target with EAGLE drafts, 1024 requests in eight tiers."""
    for kind, config in (("target", MODEL), ("draft", HEAD)):
        (folder / kind).mkdir()
        (folder / kind / "config.json").write_text(json.dumps(config))
    data = {
        "model": {"source": str(folder / "target"), "dtype": "bfloat16", "max_model_len": 32768},
        "scheduler": {"max_num_seqs": 1024, "max_num_batched_tokens": 16384},
        "kv_cache": {"num_blocks": 4096},
        "speculative": {
            "method": "eagle3",
            "model": str(folder / "draft"),
            "num_speculative_tokens": 8,
            "num_speculative_tokens_per_batch_size": [list(tier) for tier in EIGHT_TIERS],
        },
        "device": {"target": "cuda"},
    }
    return EngineConfig.from_dict(data).resolve()


def planned(spec: EngineSpec, captures: frozenset[GraphKind]) -> CapturePlan:
    """A plan with all that a report asks of it."""
    plan = plan_capture(spec, captures=captures)
    assert plan.reachable() == frozenset(plan.keys)
    assert plan.fallthrough() == ()
    return plan


def planning_ms(spec: EngineSpec, rounds: int) -> dict:
    """Medians of planning and of the table, in milliseconds."""
    adapters = attrs.evolve(spec, lora=LoRAConfig(max_loras=4))
    whole = planned(spec, FULL_VERIFY)
    captured = frozenset(whole.keys)
    ways = {
        "decode graphs": lambda: planned(spec, FULL_VERIFY),
        "drafts and pieces too": lambda: planned(spec, EVERY_KIND),
        "with 4 adapters": lambda: planned(adapters, EVERY_KIND),
        "table of a sealed engine": lambda: Routes.of(whole, captured),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, action in ways.items():
            began = time.perf_counter()
            action()
            samples[name].append((time.perf_counter() - began) * 1000)
    return {name: spread(taken) for name, taken in samples.items()}


def replay_ms(rounds: int) -> dict:
    """For each step the medians of both ways, in milliseconds, and of the ratio of neighbours."""
    return {
        step: {
            **{way: spread(samples) for way, samples in taken.items()},
            "ratio": spread([a / b for a, b in zip(taken["replay"], taken["eager"], strict=True)]),
        }
        for step, taken in fresh("replay_child.py", str(rounds)).items()
    }


def spread(taken: list[float]) -> dict:
    return {"median": statistics.median(taken), "least": min(taken), "most": max(taken)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--replays", type=int, default=30, help="0: leave out the example's model")
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    dispatched = dispatch_us(asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        planning = planning_ms(spec_of_1024(Path(folder)), max(5, asked.rounds // 5))
    replayed = replay_ms(asked.replays) if asked.replays else {}
    for name, taken in dispatched.items():
        print(f"dispatch, {name}: {taken['median']:.3f} us (least {taken['least']:.3f})")
    for name, taken in planning.items():
        print(f"planning, {name}: {taken['median']:.1f} ms (least {taken['least']:.1f})")
    for step, taken in replayed.items():
        print(
            f"replay, {step}: {taken['replay']['median']:.1f} ms, eager {taken['eager']['median']:.1f} ms, "
            f"ratio {taken['ratio']['median']:.3f} (least {taken['ratio']['least']:.3f}, most {taken['ratio']['most']:.3f})"
        )
    print(
        f"targets: decode at most {DISPATCH_TARGET_US} us, planning under {PLAN_TARGET_MS} ms, "
        "a replay no slower than eager"
    )
    write(
        "capture",
        {
            "machine": machine(),
            "rounds": asked.rounds,
            "dispatch_target_us": DISPATCH_TARGET_US,
            "dispatch_us": dispatched,
            "plan_target_ms": PLAN_TARGET_MS,
            "planning_ms": planning,
            "replay_ms": replayed,
        },
    )


if __name__ == "__main__":
    main()
