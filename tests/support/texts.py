"""Greedy texts of two engines, held against each other."""

NEAR_TIE = 1e-4
"""Logits that lie closer together may change places in a batch of another shape, whose sums are in another order."""


def ties_and_strays(with_drafts, without):
    """Tokens compared, near ties resolved differently, and differences that no tie explains."""
    compared = ties = strays = 0
    for drafted, plain in zip(with_drafts, without, strict=True):
        for at, (a, b) in enumerate(zip(drafted.tokens, plain.tokens, strict=False)):
            compared += 1
            if a != b:
                tie = min(plain.margins[at], drafted.margins[at]) <= NEAR_TIE
                ties, strays = ties + tie, strays + (not tie)
                # After a different token the two texts are different prompts.
                break
        else:
            strays += len(drafted.tokens) != len(plain.tokens)
    return compared, ties, strays
