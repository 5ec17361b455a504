"""How a draft head is trained: losses over a sample of the vocabulary, a loop that can be stopped and resumed, and what
held-out text says of it.

The product with the target's matrix over 49 thousand tokens costs several times what the head does. Most of its rows are
tokens that the text never has, so the loss goes over the frequent ones, the labels, and a few drawn from the rest, whose
logits are raised to stand for all that were not drawn (sampled softmax, Jean et al. 2015, arXiv 1412.2007).
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch
from head_models import EagleHead, MedusaHeads
from head_text import Text, batch
from torch.nn import functional as F

KEPT, DRAWN = 4096, 1024
TEXTS, ROWS = 4, 512
"""A step of training: so many texts for EAGLE, so many positions for Medusa."""
PEAK, WARM, DECAY = 1.5e-3, 60, 0.8
"""Learning rate at its highest, steps until there, and what each later draft counts of the one before."""


@attrs.frozen(kw_only=True)
class Score:
    """On held-out text, teacher-forced: share of first drafts that are right, and tokens a step would give."""

    first: float
    length: float
    positions: int


@attrs.frozen(eq=False)
class Sample:
    """rows: [N, H] of the target's matrix; shift: [N], added to logits; place: [V], a token's row or -1."""

    rows: torch.Tensor
    shift: torch.Tensor
    place: torch.Tensor


class Vocabulary:
    """Which tokens a step's loss goes over."""

    def __init__(self, matrix: torch.Tensor, texts: Sequence[Text]) -> None:
        made = torch.cat([t.tokens[t.prompt :] for t in texts])
        counts = torch.bincount(made, minlength=len(matrix))
        self.distinct = int((counts > 0).sum())
        self._matrix = matrix
        self._kept = counts.topk(min(KEPT, self.distinct)).indices

    def draw(self, labels: torch.Tensor, made: torch.Generator) -> Sample:
        """The frequent tokens, the labels, and some of the rest."""
        size = len(self._matrix)
        own = torch.cat((self._kept, labels.flatten())).unique()
        taken = torch.zeros(size, dtype=torch.bool)
        taken[own] = True
        rest = torch.randint(size, (DRAWN,), generator=made)
        rest = rest[~taken[rest]].unique()
        ids = torch.cat((own, rest))
        shift = torch.zeros(len(ids))
        if len(rest):
            shift[len(own) :] = math.log((size - len(own)) / len(rest))
        place = torch.full((size,), -1)
        place[ids] = torch.arange(len(ids))
        return Sample(self._matrix[ids], shift, place)


def target_chances(truth: torch.Tensor, sample: Sample) -> torch.Tensor:
    """What the target gave each of the tokens [N, tokens], by its states `truth` [N, H]."""
    with torch.no_grad():
        return torch.softmax(F.linear(truth, sample.rows) + sample.shift, -1)


def drafting_loss(
    scored: torch.Tensor, labels: torch.Tensor, wanted: torch.Tensor, sample: Sample
) -> torch.Tensor:
    """Cross entropy against the token that came and against the target's own chances, half and half.

    scored: [N, H], what the head gives; labels: [N]; wanted: `target_chances` of the same positions.
    """
    given = torch.log_softmax(F.linear(scored, sample.rows) + sample.shift, -1)
    hard = given.gather(1, sample.place[labels][:, None])[:, 0]
    return -(0.5 * hard + 0.5 * (wanted * given).sum(-1)).mean()


@attrs.frozen(kw_only=True, eq=False)
class Padded:
    """Texts side by side: row p of `embedded` and `states` [B, T, H] is what the head reads there, `labels` [B, T] what it
    should draft, `truth` [B, T, H] the target's state that gave it, `counts` [B, T] whether drafts are made there."""

    embedded: torch.Tensor
    states: torch.Tensor
    labels: torch.Tensor
    truth: torch.Tensor
    counts: torch.Tensor


def padded(texts: Sequence[Text], embedding: torch.Tensor) -> Padded:
    """Rows of an EAGLE head for these texts; drafting begins where the target has given its first token."""
    length = max(len(t.tokens) for t in texts) - 2
    width = embedding.shape[1]
    shape = (len(texts), length)
    tokens, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    states, truth = torch.zeros((*shape, width)), torch.zeros((*shape, width))
    counts = torch.zeros(shape, dtype=torch.bool)
    for at, t in enumerate(texts):
        rows = len(t.tokens) - 2
        tokens[at, :rows], labels[at, :rows] = t.tokens[1:-1], t.tokens[2:]
        states[at, :rows], truth[at, :rows] = t.states[:rows], t.states[1 : rows + 1]
        counts[at, t.prompt - 1 : rows] = True
    return Padded(
        embedded=F.embedding(tokens, embedding),
        states=states,
        labels=labels,
        truth=truth,
        counts=counts,
    )


class EagleTask:
    """Training of an EAGLE head on texts, and its score on others."""

    def __init__(
        self,
        head: EagleHead,
        matrix: torch.Tensor,
        embedding: torch.Tensor,
        texts: Sequence[Text],
        held: Sequence[Text],
        depth: int,
        seed: int,
    ) -> None:
        self.head, self._matrix, self._embedding, self._depth = head, matrix, embedding, depth
        self._texts, self._held, self._seed = texts, held, seed
        self.vocabulary = Vocabulary(matrix, texts)

    def loss(self, step: int, progress: float) -> torch.Tensor:
        """One pass at first, since later drafts read what the first gives; then all."""
        passes = 1 if progress < 0.3 else self._depth
        rows = padded(batch(self._texts, TEXTS, self._seed, step), self._embedding)
        labels, truth = rows.labels[rows.counts], rows.truth[rows.counts]
        sample = self.vocabulary.draw(labels, torch.Generator().manual_seed(step))
        wanted = target_chances(truth, sample)
        total = torch.zeros(())
        for at, output in enumerate(self.head(rows.embedded, rows.states, passes)):
            scored = output[rows.counts]
            near = F.smooth_l1_loss(scored / self.head.scale, truth / self.head.scale)
            total = total + DECAY**at * (drafting_loss(scored, labels, wanted, sample) + 0.5 * near)
        return total / sum(DECAY**at for at in range(passes))

    @torch.no_grad()
    def score(self, count: int | None = None) -> Score:
        """Over the first `count` held-out texts; all without one."""
        right: list[torch.Tensor] = []
        for at in range(0, len(self._held[:count]), TEXTS):
            rows = padded(self._held[:count][at : at + TEXTS], self._embedding)
            hits = []
            for output in self.head(rows.embedded, rows.states, self._depth):
                found = torch.zeros_like(rows.counts)
                best = F.linear(output[rows.counts], self._matrix).argmax(-1)
                found[rows.counts] = best == rows.labels[rows.counts]
                hits.append(found)
            # Draft j of the position p stands in row p + j.
            last = rows.counts.shape[1] - self._depth + 1
            whole = torch.stack([rows.counts[:, j : last + j] for j in range(self._depth)]).all(0)
            right.append(torch.stack([h[:, j : last + j][whole] for j, h in enumerate(hits)]))
        return score_of(torch.cat(right, 1))


class MedusaTask:
    """Training of Medusa heads on positions of texts, and their score on others."""

    def __init__(
        self,
        head: MedusaHeads,
        matrix: torch.Tensor,
        texts: Sequence[Text],
        held: Sequence[Text],
        seed: int,
    ) -> None:
        self.head, self._matrix, self._seed = head, matrix, seed
        self._depth = len(head.map)
        self._train, self._held = positions(texts, self._depth), positions(held, self._depth)
        self.vocabulary = Vocabulary(matrix, texts)

    def loss(self, step: int, progress: float) -> torch.Tensor:
        """Positions drawn from all texts."""
        made = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        states, at, labels = self._train
        chosen = torch.randint(len(at), (ROWS,), generator=made)
        sample = self.vocabulary.draw(labels[chosen], made)
        total = torch.zeros(())
        for n, scored in enumerate(self.head(states[at[chosen]])):
            wanted = target_chances(states[at[chosen] + 1 + n], sample)
            total = total + DECAY**n * drafting_loss(scored, labels[chosen, n], wanted, sample)
        return total / sum(DECAY**n for n in range(self._depth))

    @torch.no_grad()
    def score(self, count: int | None = None) -> Score:
        """Over as many positions as `count` texts have; all without one."""
        states, at, labels = self._held
        most = None if count is None else 96 * count
        right = []
        for chosen, wanted in zip(at[:most].split(ROWS), labels[:most].split(ROWS), strict=True):
            best = [F.linear(x, self._matrix).argmax(-1) for x in self.head(states[chosen])]
            right.append(torch.stack(best) == wanted.t())
        return score_of(torch.cat(right, 1))


def positions(texts: Sequence[Text], depth: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All states [R, H], the rows among them that drafts are made at [N], and the `depth` tokens to draft there [N, depth]."""
    rows, labels, first = [], [], 0
    for t in texts:
        begin = t.prompt - 1
        at = torch.arange(begin, max(begin, len(t.tokens) - 1 - depth))
        rows.append(first + at)
        labels.append(t.tokens[at[:, None] + 2 + torch.arange(depth)])
        first += len(t.states)
    return torch.cat([t.states for t in texts]), torch.cat(rows), torch.cat(labels)


def score_of(right: torch.Tensor) -> Score:
    """right: [depth, N], whether each draft of each position is the token that came."""
    kept = right.to(torch.int64).cumprod(0).sum(0)
    return Score(
        first=float(right[0].double().mean()),
        length=float(1 + kept.double().mean()),
        positions=right.shape[1],
    )


def train(
    task: EagleTask | MedusaTask,
    seconds: float,
    state: Path,
    keep: Callable[[], None],
    say: Callable[[str], None],
) -> dict:
    """Trains for `seconds` in all, counted over interrupted runs by the file `state`; calls `keep` at each best score.

    Returns what happened; the head then has its best weights. The learning rate falls to a twentieth at the end of the time,
    whatever the machine's speed.
    """
    optimizer = torch.optim.AdamW(task.head.parameters(), lr=PEAK, weight_decay=0.01)
    best: dict[str, torch.Tensor] = {}
    done = {"steps": 0, "spent": 0.0, "best": 0.0, "history": []}
    if state.exists():
        held = torch.load(state, weights_only=True)
        task.head.load_state_dict(held["head"])
        optimizer.load_state_dict(held["optimizer"])
        done = held["done"]
        best = held["best"]
    before, began = done["spent"], time.monotonic()

    def store() -> None:
        part = state.with_suffix(".part")
        held = {"optimizer": optimizer.state_dict(), "done": done, "best": best}
        torch.save({"head": task.head.state_dict(), **held}, part)
        part.rename(state)

    def look(losses: Sequence[float]) -> None:
        score = task.score(16)
        loss = sum(losses) / max(1, len(losses))
        done["history"].append(
            {
                "seconds": round(done["spent"]),
                "steps": done["steps"],
                "loss": round(loss, 4),
                **{k: round(v, 4) for k, v in attrs.asdict(score).items()},
            }
        )
        say(
            f"{done['spent']:6.0f} s  step {done['steps']:5d}  loss {loss:.3f}  first {score.first:.3f}  length {score.length:.3f}"
        )
        if score.length > done["best"]:
            done["best"] = score.length
            best.update({n: t.clone() for n, t in task.head.state_dict().items()})
            keep()
        store()

    losses: list[float] = []
    last = done["spent"]
    try:
        while done["spent"] < seconds:
            progress = done["spent"] / seconds
            rate = min(1.0, (done["steps"] + 1) / WARM) * (
                0.525 + 0.475 * math.cos(math.pi * progress)
            )
            for group in optimizer.param_groups:
                group["lr"] = PEAK * rate
            loss = task.loss(done["steps"], progress)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(task.head.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            done["steps"] += 1
            done["spent"] = before + time.monotonic() - began
            if done["spent"] - last > max(30.0, seconds / 12):
                look(losses)
                losses, last = [], done["spent"]
        if losses or not best:
            look(losses)
    finally:
        store()
    task.head.load_state_dict(best)
    return done
