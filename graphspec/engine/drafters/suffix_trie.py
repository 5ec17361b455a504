"""`SuffixTrie`: how often each short sequence of tokens occurred, and what came after it.

Every suffix of every text is a way from the root, cut off at `depth` tokens; a node counts the positions that lead to it.
What occurred once has no nodes of its own behind the first: it is read off its text until it occurs again. So a token of new
text costs one node, and a token of repeated text one for each length that repeats, up to the depth.
"""

from collections.abc import Sequence

import attrs


class Node:
    """The sequence of `depth` tokens that leads here, and how often it occurred.

    With a `text`, this is its only occurrence: it goes on at `text[at]`, and no child is there. Without one, `children` hold
    what followed each occurrence.
    """

    __slots__ = ("at", "children", "count", "depth", "text")

    def __init__(self, depth: int, text: list[int] | None = None, at: int = 0) -> None:
        self.count, self.depth = 1, depth
        self.text, self.at = text, at
        self.children: dict[int, Node] = {}


@attrs.define(eq=False)
class Text:
    """A text in a trie: its tokens, and the nodes of its last one, two and more of them, as far as there are nodes."""

    tokens: list[int] = attrs.field(factory=list)
    ends: list[Node] = attrs.field(factory=list)


class SuffixTrie:
    """Counts of all sequences of at most `depth` tokens. `nodes` is its size."""

    def __init__(self, depth: int) -> None:
        self._root, self._depth = Node(0), depth
        self.nodes = 0

    def extend(self, text: Text, tokens: Sequence[int]) -> None:
        """Adds tokens at the end of a text; of several texts in a trie, the one that was added last."""
        for token in tokens:
            text.tokens.append(token)
            # Taken before any of them changes: a node may get its second occurrence from this very token, and then has the
            # first one's next token, which is this one, already.
            going_on = [n for n in (self._root, *text.ends[: self._depth - 1]) if n.text is None]
            text.ends = [self._step(node, token, text.tokens) for node in going_on]

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

    def ends_of(self, tokens: Sequence[int]) -> list[Node]:
        """The nodes of those suffixes of `tokens` that occur, shortest first; longer than one that is absent, none does."""
        found = []
        for length in range(1, min(self._depth, len(tokens)) + 1):
            node = self._find(tokens[len(tokens) - length :])
            if node is None:
                break
            found.append(node)
        return found

    def _find(self, tokens: Sequence[int]) -> Node | None:
        node = self._root
        for at, token in enumerate(tokens):
            if node.text is not None:
                left = list(tokens[at:])
                if node.text[node.at : node.at + len(left)] != left:
                    return None
                return Node(len(tokens), node.text, node.at + len(left))
            child = node.children.get(token)
            if child is None:
                return None
            node = child
        return node

    def _step(self, node: Node, token: int, text: list[int]) -> Node:
        """Counts one more occurrence of the sequence at `node` with `token` after it, which ends `text`."""
        child = node.children.get(token)
        if child is None:
            return self._add(node, token, text, len(text))
        child.count += 1
        if child.text is not None:
            first, at, child.text = child.text, child.at, None
            if child.depth < self._depth and at < len(first):
                self._add(child, first[at], first, at + 1)
        return child

    def _add(self, node: Node, token: int, text: list[int], at: int) -> Node:
        child = node.children[token] = Node(node.depth + 1, text, at)
        self.nodes += 1
        return child

    def rest(self, node: Node, most: int) -> list[int]:
        """What follows a sequence that occurred once: at most `most` tokens, and no further than the depth."""
        assert node.text is not None
        return node.text[node.at : node.at + max(0, min(most, self._depth - node.depth))]

    def likeliest(self, node: Node, most: int, least: float) -> tuple[list[int], float]:
        """The likeliest continuation of at most `most` tokens, and how many of them are expected to be right.

        It goes to the most frequent child (of equal ones, the smallest token) while the product of the frequencies is at
        least `least`; the sum of these products is the expectation (SuffixDecoding, arXiv 2411.04975, scores by it).
        """
        tokens: list[int] = []
        chance, expected = 1.0, 0.0
        while len(tokens) < most and node.children:
            token, child = min(node.children.items(), key=lambda item: (-item[1].count, item[0]))
            # Of what followed: the text's own end has no follower yet and would only dilute the share.
            chance *= child.count / sum(c.count for c in node.children.values())
            if chance < least:
                return tokens, expected
            tokens.append(token)
            expected += chance
            node = child
        if node.text is not None:
            rest = self.rest(node, most - len(tokens))
            return [*tokens, *rest], expected + chance * len(rest)
        return tokens, expected


def _size(node: Node) -> int:
    size, stack = 0, [node]
    while stack:
        size += 1
        stack.extend(stack.pop().children.values())
    return size
