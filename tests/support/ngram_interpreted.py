"""Runs the Triton n-gram kernels in the interpreter: cases on stdin, results on stdout. TRITON_INTERPRET=1 must be set."""

import json
import sys

import torch

from graphspec.kernels.ngram_gpu import propose_ngram_gpu


def run(case):
    """Drafts and counts of one batch."""
    contexts, columns = case["contexts"], case["columns"]
    # What lies past a context's end repeats its beginning, so that reading there would change the answer.
    rows = [(c + (c or [0]) * columns)[:columns] for c in contexts]
    tokens = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), columns)
    if case.get("offset"):
        # Rows that begin at an odd address, further apart than they are long.
        wide = torch.full((len(rows), columns + 3), 77, dtype=torch.int32)
        wide[:, 1 : 1 + columns] = tokens
        tokens = wide[:, 1 : 1 + columns]
    sampled = case.get("sampled")
    found = propose_ngram_gpu(
        tokens,
        torch.tensor([len(c) for c in contexts], dtype=torch.int32),
        sampled=None if sampled is None else torch.tensor(sampled, dtype=torch.int32),
        **case["settings"],
    )
    return {"drafts": found.drafts.tolist(), "counts": found.counts.tolist()}


if __name__ == "__main__":
    print(json.dumps([run(case) for case in json.load(sys.stdin)]))
