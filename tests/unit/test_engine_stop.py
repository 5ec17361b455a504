"""Where a request ends inside the tokens of one step, which text is shown by then, and what is refused of its wishes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphspec.engine.sampling import SamplingParams, accept_greedy
from graphspec.engine.stop import FinishReason, TextSoFar, apply_stops
from graphspec.errors import RequestError

PIECES = [b"a", b"b", b"ab", b" c", "é".encode()[:1], "é".encode()[1:], "日".encode(), b"ba"]
"""The bytes of each token; two of them are half a character each."""
EOS = len(PIECES)


def decode(tokens):
    return b"".join(PIECES[t] for t in tokens if t != EOS).decode(errors="replace")


def ended(accepted, *, room=99, text=None, **params):
    return apply_stops(
        accepted,
        room=room,
        params=SamplingParams(**params),
        end_of_text=frozenset([EOS]),
        text=text or TextSoFar(),
        decode=decode,
    )


def test_end_of_text_ends_a_request_in_the_middle_of_a_step():
    """Tokens behind it were never said, though their drafts were right."""
    found = ended([0, EOS, 1, 1])
    assert (found.kept, found.reason, found.text.text) == (2, FinishReason.STOP, "a")


def test_ignore_eos_goes_on_but_stop_ids_still_end():
    """The switch is about the tokenizer's end of text, not about the request's own ids."""
    assert ended([0, EOS, 1], ignore_eos=True).reason is None
    found = ended([0, EOS, 1, 0], ignore_eos=True, stop_token_ids=[1])
    assert (found.kept, found.reason) == (3, FinishReason.STOP)


def test_length_ends_a_request_in_the_middle_of_a_step():
    """No request gets more tokens than it asked for, however many drafts were right."""
    found = ended([0, 1, 0, 1], room=3)
    assert (found.kept, found.reason, found.text.text) == (3, FinishReason.LENGTH, "aba")


def test_a_stop_text_is_cut_off_with_what_follows():
    """It may begin in one token and end in another, also of an earlier step."""
    found = ended([0, 1, 3, 0], stop=["b c"])
    assert (found.kept, found.reason, found.text.text) == (3, FinishReason.STOP, "a")
    before = ended([0, 1], stop=["b c"])
    assert before.reason is None
    found = ended([3, 0], stop=["b c"], text=before.text)
    assert (found.kept, found.text.text) == (1, "a")


def test_the_earliest_of_several_stop_texts_counts():
    """Where one token completes two, the text ends before the one that begins first."""
    found = ended([1, 2, 3], stop=["b c", "ab c", "c"])
    assert (found.kept, found.text.text) == (3, "b")


def test_the_beginning_of_a_stop_text_is_not_shown_until_it_is_none():
    """A listener never sees a character that the final text does not have."""
    text = ended([0, 1], stop=["b c"]).text
    shown, text = text.shown(["b c"], ended=False)
    assert shown == "a"
    text = ended([1], stop=["b c"], text=text).text
    shown, text = text.shown(["b c"], ended=False)
    assert shown == "b"
    assert text.shown(["b c"], ended=True)[0] == "b"


def test_half_a_character_waits_for_the_other_half():
    """Bytes of one character that lie in two tokens are shown together; at the end what there is is shown."""
    text = TextSoFar().extended(0, decode).extended(4, decode)
    assert text.text == "a"
    assert text.extended(5, decode).text == "aé"
    assert text.extended(4, decode, last=True).text == "a\ufffd\ufffd"


@given(
    steps=st.lists(st.lists(st.integers(0, EOS), min_size=1, max_size=5), min_size=1, max_size=8),
    stops=st.lists(st.sampled_from(["a", "ab", "bab", " c", "é", "日b", "cc"]), max_size=2),
    room=st.integers(1, 12),
)
def test_deltas_add_up_to_the_text_and_the_text_to_its_tokens(steps, stops, room):
    """Whatever the steps: what was shown, put together, is the final text, and that is the tokens' text up to the first
    stop text, which it does not contain."""
    text, shown, tokens, reason = TextSoFar(), "", [], None
    for accepted in steps:
        found = ended(accepted, room=room - len(tokens), text=text, stop=stops)
        tokens += accepted[: found.kept]
        reason = found.reason
        delta, text = found.text.shown(stops, ended=reason is not None)
        shown += delta
        if reason is not None:
            break
    whole = decode(tokens)
    assert whole.startswith(shown)
    assert not any(stop in shown for stop in stops)
    if reason is not None:
        assert shown == text.text
        first = min((whole.find(s) for s in stops if s in whole), default=len(whole))
        assert shown == whole[:first]


def test_greedy_verification_keeps_right_drafts_and_one_token_more():
    """Drafts are right as long as each is the best token; the row behind them gives the next."""
    accepted = accept_greedy([5, 6, 7], [5, 6, 8, 9], [0.1, 0.2, 0.3, 0.4])
    assert (accepted.tokens, accepted.margins, accepted.broken) == (
        (5, 6, 8),
        (0.1, 0.2, 0.3),
        False,
    )
    assert accept_greedy([], [4], [1.0]).tokens == (4,)
    assert accept_greedy([5], [5, 3], [1.0, 1.0]).tokens == (5, 3)


def test_a_row_that_is_no_distribution_ends_the_request_before_it():
    """A NaN has no best token: what came before is kept, and no id is made up."""
    accepted = accept_greedy([5, 6], [5, 0, 7], [1.0, math.nan, 1.0])
    assert (accepted.tokens, accepted.broken) == ((5,), True)
    # Behind a rejected draft nobody asks.
    assert not accept_greedy([4, 6], [5, 0, 7], [1.0, math.nan, 1.0]).broken


def test_wishes_that_make_no_sense_are_refused_all_at_once():
    """Each field is named with what it may be."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(
            temperature=math.nan, top_k=-1, top_p=0, min_p=2, seed=-1, max_tokens=0, stop=[""]
        )
    found = {p.where for p in caught.value.problems}
    assert found == {"temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "stop"}


def test_one_stop_text_need_not_be_in_a_list():
    """A text is one text, and not its letters."""
    assert SamplingParams(stop="end").stop == ("end",)
