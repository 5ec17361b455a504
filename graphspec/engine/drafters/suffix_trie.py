"""`SuffixTrie`: how often each short sequence of tokens occurred, and what came after it.

Every suffix of every text is a way from the root, cut off at `depth` tokens; a node counts the texts' positions that lead to
it. A new token costs one node for each length up to the depth, whatever the length of the text.
"""

from collections.abc import Sequence


class Node:
    """The sequence that leads here: how often it occurred, and what followed."""

    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}
        self.count = 0


Ends = list[Node]
"""Nodes of the suffixes that a text ends with: the last token, the last two, and so on up to the depth."""


class SuffixTrie:
    """Counts of all sequences of at most `depth` tokens. `nodes` is its size."""

    def __init__(self, depth: int) -> None:
        self._root, self._depth = Node(), depth
        self.nodes = 0

    def extend(self, ends: Ends, tokens: Sequence[int]) -> Ends:
        """Adds tokens to a text that ends with `ends` (empty for a new text), and gives its new ends."""
        for token in tokens:
            ends = [self._step(node, token) for node in (self._root, *ends[: self._depth - 1])]
        return ends

    def remove(self, tokens: Sequence[int]) -> None:
        """Takes a whole text back, as it was added."""
        for start in range(len(tokens)):
            node = self._root
            for token in tokens[start : start + self._depth]:
                child = node.children[token]
                child.count -= 1
                if child.count == 0:
                    self.nodes -= _size(node.children.pop(token))
                    break
                node = child

    def ends_of(self, tokens: Sequence[int]) -> Ends:
        """The nodes of those suffixes of `tokens` that occur, shortest first; longer than one that is absent, none does."""
        found = []
        for length in range(1, min(self._depth, len(tokens)) + 1):
            node: Node | None = self._root
            for token in tokens[len(tokens) - length :]:
                node = node.children.get(token) if node is not None else None
            if node is None:
                break
            found.append(node)
        return found

    def _step(self, node: Node, token: int) -> Node:
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Node()
            self.nodes += 1
        child.count += 1
        return child


def _size(node: Node) -> int:
    size, stack = 0, [node]
    while stack:
        size += 1
        stack.extend(stack.pop().children.values())
    return size


def likeliest(node: Node, most: int, least: float) -> tuple[list[int], float]:
    """The likeliest continuation of at most `most` tokens, and how many of them are expected to be right.

    It goes to the most frequent child (of equal ones, the smallest token) while the product of the frequencies is at least
    `least`; the sum of these products is the expectation (SuffixDecoding, arXiv 2411.04975, scores by it).
    """
    tokens: list[int] = []
    chance, expected = 1.0, 0.0
    while len(tokens) < most and node.children:
        token, child = min(node.children.items(), key=lambda item: (-item[1].count, item[0]))
        # Of what followed: the text's own end has no follower yet and would only dilute the share.
        chance *= child.count / sum(c.count for c in node.children.values())
        if chance < least:
            break
        tokens.append(token)
        expected += chance
        node = child
    return tokens, expected
