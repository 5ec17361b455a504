"""The suffix drafter: exact counts, likeliest continuations, earlier outputs, and bounded memory."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.drafters.protocol import Computed, TargetStep
from graphspec.engine.drafters.suffix import Outputs
from graphspec.engine.drafters.suffix_trie import SuffixTrie, Text
from support.drafters import engine_spec

DEPTH = 4
TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=5)


def counted(texts):
    """Occurrences of every sequence of at most `DEPTH` tokens."""
    return Counter(
        tuple(text[at : at + length])
        for text in texts
        for length in range(1, DEPTH + 1)
        for at in range(len(text) - length + 1)
    )


def held(trie):
    """What a trie counts, read off its nodes, and off the texts of those that occurred once."""
    found, open_nodes = {}, [((), trie._root)]
    while open_nodes:
        way, node = open_nodes.pop()
        found |= {way: node.count} if way else {}
        if node.text is not None:
            rest = trie.rest(node, DEPTH)
            found |= {(*way, *rest[: n + 1]): 1 for n in range(len(rest))}
        open_nodes += [((*way, token), child) for token, child in node.children.items()]
    return found


def filled(texts):
    trie = SuffixTrie(DEPTH)
    for text in texts:
        trie.extend(Text(), text)
    return trie


@given(TEXTS, st.data())
def test_counts_are_those_of_all_short_sequences_also_after_removal(texts, data):
    """Adding text in any pieces and taking texts back leaves exactly the counts of what is there."""
    trie = SuffixTrie(DEPTH)
    for at, tokens in enumerate(texts):
        cut, text = data.draw(st.integers(0, len(tokens))), Text()
        trie.extend(text, tokens[:cut])
        trie.extend(text, tokens[cut:])
        assert text.tokens == tokens
        counts = counted(texts[: at + 1])
        repeated = [n for n in range(1, DEPTH + 1) if counts[tuple(tokens[-n:])] > 1]
        repeated = [n for n in repeated if n <= len(tokens)]
        assert [n.count for n in text.ends[: len(repeated)]] == [
            counts[tuple(tokens[-n:])] for n in repeated
        ]
    assert held(trie) == counted(texts)
    gone = data.draw(st.integers(0, len(texts)))
    for tokens in texts[:gone]:
        trie.remove(tokens)
    left = counted(texts[gone:])
    assert held(trie) == left
    assert trie.nodes <= len(left)
    again = data.draw(st.lists(st.integers(0, 2), max_size=8))
    trie.extend(Text(), again)
    assert held(trie) == counted([*texts[gone:], again])


def test_new_text_costs_a_node_a_token():
    """What occurred once is read off its text, whatever the depth."""
    trie = SuffixTrie(24)
    trie.extend(Text(), range(1000))
    assert trie.nodes == 1000


@given(TEXTS, st.lists(st.integers(0, 2), max_size=8))
def test_ends_are_the_suffixes_that_occur(texts, tokens):
    """A lookup finds each suffix that some text has, shortest first."""
    trie = filled(texts)
    counts = counted(texts)
    lengths = range(1, min(DEPTH, len(tokens)) + 1)
    wanted = [counts[tuple(tokens[-n:])] for n in lengths if counts[tuple(tokens[-n:])]]
    assert [n.count for n in trie.ends_of(tokens)] == wanted


def test_the_likeliest_continuation_stops_where_it_becomes_unlikely():
    """Frequencies multiply along the way; the sum of the products is the expected number of hits."""
    trie = filled([[1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 5]])
    (node,) = trie.ends_of([1])
    assert trie.likeliest(node, 9, 0.0) == ([2, 3], 0.75 + 0.75 * 2 / 3)
    assert trie.likeliest(node, 9, 0.6) == ([2], 0.75)
    assert trie.likeliest(node, 1, 0.0) == ([2], 0.75)
    assert trie.likeliest(node, 0, 0.0) == ([], 0.0)


@given(TEXTS, st.lists(st.integers(0, 2), max_size=4), st.integers(0, 5), st.floats(0, 1))
def test_the_likeliest_continuation_is_that_of_the_counts(texts, tokens, most, least):
    """Against the rule on plain counts: the most frequent next token, the smallest of equal ones, as long as likely."""
    trie, counts = filled(texts), counted(texts)
    for length, node in enumerate(trie.ends_of(tokens), 1):
        way, wanted, chance, expected = tuple(tokens[-length:]), [], 1.0, 0.0
        while len(wanted) < most:
            after = {t: counts[(*way, t)] for t in range(3) if counts[(*way, t)]}
            if len(way) == DEPTH or not after:
                break
            token = min(after, key=lambda t: (-after[t], t))
            chance *= after[token] / sum(after.values())
            if chance < least:
                break
            way, expected = (*way, token), expected + chance
            wanted.append(token)
        found, hits = trie.likeliest(node, most, least)
        assert found == wanted
        assert abs(hits - expected) < 1e-9


def test_of_equally_frequent_tokens_the_smallest_is_drafted():
    """The choice does not depend on the order in which texts came."""
    for texts in ([[1, 7], [1, 3]], [[1, 3], [1, 7]]):
        trie = filled(texts)
        assert trie.likeliest(trie.ends_of([1])[0], 1, 0.0)[0] == [3]


def test_earlier_outputs_are_bounded_in_number_and_nodes():
    """The oldest leave first, and nothing of them stays."""
    outputs = Outputs(DEPTH, most=3, max_nodes=1000)
    for request in range(10):
        outputs.add(request, 0, [request] * 3 + [9])
    assert len(outputs) == 3
    assert held(outputs.trie) == counted([[r] * 3 + [9] for r in (7, 8, 9)])
    tight = Outputs(DEPTH, most=100, max_nodes=10)
    for request in range(50):
        tight.add(request, 0, list(range(10 * request, 10 * request + 6)))
        assert tight.trie.nodes <= 10
        assert len(tight) == 1


def test_an_output_that_comes_again_replaces_itself():
    """A preempted request, forgotten twice, counts once, and remembers where its output began."""
    outputs = Outputs(DEPTH, most=3)
    outputs.add(5, 10, [1, 2])
    assert outputs.prompt_of(5) == 10
    outputs.add(5, 10, [1, 2, 3])
    assert held(outputs.trie) == counted([[1, 2, 3]])


def drafter(folder, **section):
    spec = engine_spec(folder, "suffix", **section)
    return make_drafter(DraftContext(spec=spec, weights=None))


def propose(made, request, tokens, wanted=4):
    part = Computed(
        request=request,
        tokens=tokens,
        first=0,
        count=len(tokens) - 1,
        row=0,
        blocks=(),
        wanted=wanted,
    )
    (proposal,) = made.propose(TargetStep(requests=[part]))
    return list(proposal.tokens)


def test_another_requests_output_is_found(tmp_path):
    """What one request generated after the same words is drafted for the next; its prompt is not shared."""
    made = drafter(tmp_path)
    assert propose(made, 0, [50, 51, 10, 11]) == []
    assert propose(made, 0, [50, 51, 10, 11, 12, 13, 14, 15]) == []
    made.forget(0)
    assert propose(made, 1, [20, 11, 12, 13]) == [14, 15]
    assert propose(made, 2, [20, 51]) == []


def test_a_preempted_request_is_no_output_twice(tmp_path):
    """It is forgotten, comes back with its prompt and output as one, and its output still starts where it did."""
    made = drafter(tmp_path)
    propose(made, 0, [50, 51, 10])
    propose(made, 0, [50, 51, 10, 11])
    made.forget(0)
    propose(made, 0, [50, 51, 10, 11, 12])
    made.forget(0)
    assert held(made.outputs.trie).keys() == {key for key in counted([[10, 11, 12]]) if key}


@pytest.mark.parametrize(("factor", "drafts"), [(0.5, 1), (1.0, 2), (3.0, 4)])
def test_a_longer_match_drafts_more(tmp_path, factor, drafts):
    """At most `max_spec_factor` drafts a matched token."""
    made = drafter(tmp_path, suffix_decoding_max_spec_factor=factor)
    assert len(propose(made, 0, [7, 8, 1, 2, 3, 4, 5, 9, 7, 8])) == drafts
