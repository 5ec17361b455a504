"""Mapping between a draft's and a target's vocabulary by token strings (TLI, arXiv 2502.05202), and reduced vocabularies."""

from collections.abc import Mapping, Sequence

from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, keyed
from graphspec.text import plural

MARKERS = ("\u0120", "\u2581")
"""What tokenizers put for a leading space: byte-level BPE and SentencePiece."""

_FEW = 100


@config_class
class VocabularyMap:
    """For each draft id the target id of the same string, or -1. The table lies inside compiled draft code."""

    draft_to_target: tuple[int, ...] = keyed(
        Stage.COMPILE, doc="Target id by draft id; -1: no such token in the target."
    )
    target_vocab_size: int = keyed(Stage.COMPILE, minimum=1, doc="Target ids are below it.")

    @property
    def allowed(self) -> tuple[bool, ...]:
        """By draft id: whether a draft may propose it."""
        return tuple(t >= 0 for t in self.draft_to_target)

    @property
    def common(self) -> int:
        """Tokens that both vocabularies have."""
        return sum(self.allowed)

    @property
    def few(self) -> bool:
        """Whether so few are common that drafts will hardly ever be kept."""
        return self.common < _FEW

    def target_to_draft(self) -> Mapping[int, int]:
        """Draft id by target id, for the context that the draft reads; target tokens without one are left out."""
        return {target: draft for draft, target in enumerate(self.draft_to_target) if target >= 0}


def map_vocabularies(
    draft: Mapping[str, int],
    target: Mapping[str, int],
    *,
    draft_vocab_size: int,
    target_vocab_size: int,
    draft_markers: tuple[str, ...] = MARKERS,
    target_markers: tuple[str, ...] = MARKERS,
) -> VocabularyMap:
    """The map between two vocabularies (string -> id), equal strings being equal tokens.

    A leading word marker counts as a space; each tokenizer has its own, as `word_markers` finds it. Ids at or beyond a declared size are padding and never mapped. Raises
    `SpecError` when no token is common.

    >>> map_vocabularies({"a": 1, "b": 0}, {"a": 0, "b": 1}, draft_vocab_size=2, target_vocab_size=2).draft_to_target
    (1, 0)
    """
    known = _by_text(target, target_vocab_size, target_markers)
    table = [-1] * draft_vocab_size
    for text, token in _by_text(draft, draft_vocab_size, draft_markers).items():
        table[token] = known.get(text, -1)
    made = VocabularyMap(draft_to_target=tuple(table), target_vocab_size=target_vocab_size)
    if made.common == 0:
        raise SpecError(
            Problem(
                where="speculative.use_heterogeneous_vocab",
                found=f"no token in common between {plural(draft_vocab_size, 'token')} of the draft and "
                f"{target_vocab_size} of the target",
                wanted="vocabularies that share tokens",
                hint="choose a draft with a tokenizer of the same kind",
            )
        )
    return made


def word_markers(first_token: str, letter: str) -> tuple[str, ...]:
    """What a tokenizer puts for a leading space, from the first token that it makes of a space and `letter`. All the usual
    ones where that token does not say.

    A marker of another tokenizer is a letter in this one: Maltese has words that begin with U+0120.

    >>> word_markers("_a", "a"), len(word_markers("a", "a"))
    (('_',), 2)
    """
    marker = first_token.removesuffix(letter)
    return (marker,) if marker and marker != first_token else MARKERS


def _by_text(
    vocabulary: Mapping[str, int], size: int, markers: tuple[str, ...]
) -> Mapping[str, int]:
    texts: dict[str, int] = {}
    for token, number in vocabulary.items():
        if 0 <= number < size:
            # Two spellings of one text: the first in the tokenizer's own order is the one that it produces.
            texts.setdefault(_with_space(token, markers), number)
    return texts


def _with_space(token: str, markers: tuple[str, ...]) -> str:
    marker = next((m for m in markers if token.startswith(m)), None)
    return token if marker is None else " " + token[len(marker) :]


def reduced_vocabulary(
    target_ids: Sequence[int], *, eos_token_ids: Sequence[int], target_vocab_size: int
) -> VocabularyMap:
    """The map of a draft that scores only some of the target's tokens (FR-Spec, arXiv 2502.14856).

    The ids must be sorted, unique, valid in the target and hold every end-of-text id. Raises `SpecError` otherwise.
    """
    problems = []
    outside = [t for t in target_ids if not 0 <= t < target_vocab_size]
    if outside:
        problems.append(
            _wrong(f"ids {outside[:5]}", f"ids of the target, below {target_vocab_size}")
        )
    if list(target_ids) != sorted(set(target_ids)):
        problems.append(_wrong("ids that repeat or are out of order", "ascending ids, each once"))
    missing = sorted(set(eos_token_ids) - set(target_ids))
    if missing:
        problems.append(
            _wrong(f"no end-of-text id {missing}", "all of them: drafts could never end a text")
        )
    if problems:
        raise SpecError(problems)
    return VocabularyMap(draft_to_target=tuple(target_ids), target_vocab_size=target_vocab_size)


def _wrong(found: str, wanted: str) -> Problem:
    return Problem(where="draft vocabulary", found=found, wanted=wanted)
