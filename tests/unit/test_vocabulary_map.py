"""TLI (9.7): tokens of two real tokenizers are the same token where they are the same text."""

import json
import logging

import pytest
import tokenizers

from graphspec.engine.drafters.vocabulary import map_tokenizers, tables_of
from graphspec.engine.tokenizer import Tokenizer
from graphspec.errors import SpecError
from graphspec.speculators.vocabulary import MARKERS, word_markers

BYTES, PIECES = MARKERS
WORDS = ["a", "b", "the", "cat"]


def byte_level(words, special=()):
    """A byte-level BPE tokenizer, as GPT-2's: a leading space is U+0120."""
    merged = [*words, *(BYTES + w for w in words)]
    letters = sorted({c for text in merged for c in text})
    merges, vocab = [], {t: i for i, t in enumerate([*special, *letters])}
    for text in merged:
        for end in range(2, len(text) + 1):
            if text[:end] not in vocab:
                vocab[text[:end]] = len(vocab)
                merges.append([text[: end - 1], text[end - 1]])
    return made(
        {
            "version": "1.0",
            "added_tokens": added(special),
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "use_regex": True,
                "trim_offsets": True,
            },
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "use_regex": True,
                "trim_offsets": True,
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        }
    )


def pieces(words, special=("<unk>",)):
    """A unigram tokenizer, as SentencePiece makes: a leading space is U+2581."""
    texts = [*special, PIECES, *words, *(PIECES + w for w in words), *"abcdefghijklmnopqrstuvwxyz"]
    listed = list(dict.fromkeys(texts))
    return made(
        {
            "version": "1.0",
            "added_tokens": added(special),
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": PIECES,
                "prepend_scheme": "never",
                "split": False,
            },
            "decoder": {"type": "Metaspace", "replacement": PIECES, "prepend_scheme": "never"},
            "model": {
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [[t, -10.0 + len(t)] for t in listed],
            },
        }
    )


def added(special):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": at, "content": text, "special": True, **flags} for at, text in enumerate(special)
    ]


def made(content):
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), frozenset(), None)


def mapped(draft, target):
    return map_tokenizers(
        draft,
        target,
        draft_vocab_size=len(draft.vocabulary),
        target_vocab_size=len(target.vocabulary),
    )


def plain(token):
    return " " + token[1:] if token.startswith(MARKERS) else token


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        (byte_level(WORDS), pieces(WORDS)),
        (pieces(WORDS), byte_level(WORDS)),
        (byte_level(WORDS), byte_level(["the", "dog", "a"], special=("<s>",))),
        (pieces(WORDS), pieces(["cat", "b"])),
    ],
)
def test_mapped_tokens_have_the_same_text(draft, target):
    """In both directions, and every common text is mapped: words with a space before them too."""
    table = mapped(draft, target)
    texts = {i: plain(t) for t, i in target.vocabulary.items()}
    draft_texts = {i: plain(t) for t, i in draft.vocabulary.items()}
    found = {d: t for d, t in enumerate(table.draft_to_target) if t >= 0}
    assert {draft_texts[d] for d in found} == set(texts.values()) & set(draft_texts.values())
    assert all(draft_texts[d] == texts[t] for d, t in found.items())
    assert table.target_to_draft() == {t: d for d, t in found.items()}
    assert any(text.startswith(" ") and len(text) > 1 for d in found for text in [draft_texts[d]])


def test_what_the_draft_writes_reads_the_same_in_the_target():
    """Ids of a text, mapped one by one, decode to the text."""
    draft, target = byte_level(WORDS), pieces(WORDS)
    table = mapped(draft, target).draft_to_target
    ids = draft.encode("the cat a b")
    assert target.decode([table[i] for i in ids]) == "the cat a b"


def test_the_marker_is_the_tokenizers_own():
    """U+0120 begins words of Maltese: in a SentencePiece vocabulary it is a letter, and the word no word with a space."""
    word = BYTES + "or"
    draft, target = pieces([word, "or", "a"]), byte_level(["or", "a"])
    with_letter = draft.vocabulary[word]
    with_space = draft.vocabulary[PIECES + "or"]
    table = mapped(draft, target).draft_to_target
    assert table[with_space] == target.vocabulary[BYTES + "or"]
    assert table[with_letter] == -1


def test_a_marker_that_cannot_be_seen_is_looked_for_among_the_usual():
    """A first token without the letter, without anything before it, or with nothing of both."""
    assert word_markers(BYTES + "a", "a") == (BYTES,)
    for token in (PIECES, "a", "", "b"):
        assert word_markers(token, "a") == MARKERS


def test_special_tokens_are_common_only_as_equal_strings():
    """A draft whose end of text is spelled otherwise never proposes the target's."""
    table = mapped(
        byte_level(WORDS, special=("<|end|>", "<same>")),
        byte_level(WORDS, special=("<same>", "</s>")),
    )
    assert table.draft_to_target[:2] == (-1, 0)


def test_few_common_tokens_are_a_warning_and_none_an_error(caplog):
    """Fewer than 100."""
    with caplog.at_level(logging.WARNING, logger="graphspec"):
        mapped(byte_level(WORDS), pieces(WORDS))
    assert "share only 13 tokens" in caplog.text
    caplog.clear()
    many = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    with caplog.at_level(logging.WARNING, logger="graphspec"):
        mapped(byte_level(many), byte_level(many))
    assert caplog.text == ""
    with pytest.raises(SpecError, match="no token in common"):
        mapped(byte_level(["xy"]), pieces_of("ab"))


def pieces_of(text):
    """A tokenizer whose whole vocabulary is one text."""
    return made(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": {text: 0}, "unk_token": text}}
    )


def test_unknown_tokens_become_the_drafts_unknown_one_also_if_that_is_0():
    """Id 0 is a token like any other: None is what is missing."""
    draft, target = pieces(["a"]), byte_level(["a", "zebra"])
    tables = tables_of(mapped(draft, target), 0, "cpu")
    assert tables.to_draft[target.vocabulary["zebra"]] == 0
    assert tables.to_draft[target.vocabulary["a"]] == draft.vocabulary["a"]
    assert tables.to_target[0] == -1
