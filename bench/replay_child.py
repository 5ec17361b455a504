"""Decode steps of the example in turn: replayed from the tape, and run eagerly on the same buffers. Prints one JSON line."""

import json
import sys
import time


def milliseconds(action) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def main(rounds: int) -> None:
    import torch

    from graphspec.api import load
    from graphspec.capture.warmup import make_ready

    spec = load("examples/smollm2-ngram.yaml")
    ready = make_ready(spec)
    source, manager = ready.source, ready.manager
    plan = manager.plan
    keys = [plan.key_for(requests, spec.schedule.k_for(requests)) for requests in (1, 8, 16)]
    taken: dict[str, dict[str, list[float]]] = {}
    with torch.no_grad():
        for at in range(rounds + 1):
            for key in keys:
                source.fill_example(key, 0)
                ways = [
                    ("replay", lambda key=key: manager.replay(key)),
                    ("eager", lambda key=key: source.step(key)),
                ]
                # Who comes first finds colder caches, so each does in every second round.
                for name, action in reversed(ways) if at % 2 else ways:
                    spent = milliseconds(action)
                    if at:
                        samples = taken.setdefault(str(key), {"replay": [], "eager": []})
                        samples[name].append(spent)
    print(json.dumps(taken))


if __name__ == "__main__":
    main(int(sys.argv[1]))
