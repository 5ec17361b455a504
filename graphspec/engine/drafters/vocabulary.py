"""Token tables for a draft model with a vocabulary of its own (TLI, arXiv 2502.05202)."""

import logging
from collections.abc import Mapping

import attrs
import torch

from graphspec.config.model import ModelSpec
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.tokenizer import Tokenizer, load_tokenizer
from graphspec.errors import Problem, SpecError
from graphspec.resolve.checkpoint import read_checkpoint
from graphspec.speculators.vocabulary import MARKERS, VocabularyMap, map_vocabularies, word_markers

_log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False)
class TokenTables:
    """to_target: [draft vocabulary] int64, -1 for tokens that the target lacks. to_draft: [target vocabulary] int64, the
    draft's unknown token for those that the draft lacks."""

    to_target: torch.Tensor
    to_draft: torch.Tensor

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Both tables."""
        return {"to_target": self.to_target, "to_draft": self.to_draft}


def token_tables(context: DraftContext) -> TokenTables | None:
    """The tables, where the config asks for a mapping between vocabularies; reads both tokenizers."""
    verification = context.speculative.verification
    if verification is None or not verification.use_heterogeneous_vocab:
        return None
    target, draft = context.spec.model, context.model
    made = map_tokenizers(
        load_tokenizer(draft),
        load_tokenizer(target),
        draft_vocab_size=draft.vocab_size,
        target_vocab_size=target.vocab_size,
    )
    return tables_of(made, _unknown(draft), context.device)


def map_tokenizers(
    draft: Tokenizer, target: Tokenizer, *, draft_vocab_size: int, target_vocab_size: int
) -> VocabularyMap:
    """The map between the tokens of two tokenizers. Warns where so few are common that drafts will hardly be kept, and raises
    `SpecError` where none is."""
    made = map_vocabularies(
        draft.vocabulary,
        target.vocabulary,
        draft_vocab_size=draft_vocab_size,
        target_vocab_size=target_vocab_size,
        draft_markers=_markers(draft),
        target_markers=_markers(target),
    )
    if made.few:
        _log.warning(
            "draft and target share only %d tokens: hardly a draft will be kept", made.common
        )
    return made


def _markers(tokenizer: Tokenizer) -> tuple[str, ...]:
    ids = tokenizer.encode(" a")
    by_id = {number: token for token, number in tokenizer.vocabulary.items()}
    return word_markers(by_id.get(ids[0], ""), "a") if ids else MARKERS


def tables_of(vocabularies: VocabularyMap, unknown: int, device: str) -> TokenTables:
    """Both directions of a map; target tokens that the draft lacks become `unknown`."""
    to_draft = torch.full((vocabularies.target_vocab_size,), unknown, dtype=torch.int64)
    for target, draft in vocabularies.target_to_draft().items():
        to_draft[target] = draft
    return TokenTables(
        to_target=torch.tensor(vocabularies.draft_to_target, dtype=torch.int64, device=device),
        to_draft=to_draft.to(device),
    )


def _unknown(draft: ModelSpec) -> int:
    """The token that the draft reads for one that it does not have: unknown, else end of text. 0 is as good as any id."""
    config = read_checkpoint(draft.source, "speculative.model")
    for name in ("unk_token_id", "eos_token_id"):
        found = config.get(name)
        first = found[0] if isinstance(found, tuple | list) and found else found
        if type(first) is int and 0 <= first < draft.vocab_size:
            return first
    raise SpecError(
        Problem(
            where="speculative.model",
            found=f"neither unk_token_id nor eos_token_id in the config of {draft.source}",
            wanted="an id for tokens of the target that the draft does not have",
        )
    )
