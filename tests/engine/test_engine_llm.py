"""`LLM`: text in, text out; deltas as they come; and what is refused before the first step."""

import attrs
import pytest
import tokenizers

from graphspec.capture.warmup import Ready
from graphspec.config.engine import EngineConfig
from graphspec.engine.llm import LLM
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.stop import FinishReason
from graphspec.errors import EnvironmentProblem, RequestError
from support.checkpoints import TINY, write_checkpoint
from support.tiny_engine import tiny_engine

PROMPTS = ["w3 w14 w15 w9", "w65 w35 w65 w35 w65", "w7"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """The tiny model with a tokenizer of one word a token; w1 is its end of text."""
    folder = write_checkpoint(tmp_path_factory.mktemp("words"), TINY)
    words = {f"w{at}": at for at in range(TINY["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return EngineConfig.from_dict(
        {
            "model": {"source": str(folder), "max_model_len": 64},
            "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
            "kv_cache": {"block_size": 4, "num_blocks": 40},
            "speculative": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 3,
            },
        }
    ).resolve()


def llm_of(spec):
    engine = tiny_engine(spec)
    # What was captured, and how, is not asked here.
    return LLM(spec, ready=Ready(source=engine._executor, manager=engine._manager, report=None))


@pytest.fixture(scope="module")
def llm(spec):
    """One engine for all tests of this page; each leaves it empty."""
    return llm_of(spec)


@pytest.fixture(autouse=True)
def left_empty(llm):
    """Whatever a test does, the engine holds no request and no block afterwards."""
    yield
    assert (llm.counts.running, llm.counts.waiting, llm.counts.kv_usage) == (0, 0, 0)


def test_text_is_that_of_the_tokens(llm):
    """Prompts may be text or ids; generations come in the order of prompts, each with its text."""
    made = llm.generate([*PROMPTS, llm.tokenizer.encode(PROMPTS[0])])
    assert len(made) == 4
    assert made[0] == made[3] or made[0].tokens == made[3].tokens
    for one in made:
        assert one.text == llm.tokenizer.decode(one.tokens)
        assert 1 <= len(one.tokens) <= 64


def test_each_prompt_may_have_wishes_of_its_own(llm):
    """Lengths differ within one batch."""
    wishes = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 9)]
    made = llm.generate(PROMPTS, wishes)
    assert [len(m.tokens) for m in made] == [1, 5, 9]
    assert {m.finished for m in made} == {FinishReason.LENGTH}


def test_a_stop_text_ends_a_generation_before_it(llm):
    """The text ends where the stop text would have begun, whichever step it came in."""
    (whole,) = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=20, ignore_eos=True))
    stop = " ".join(whole.text.split()[6:8])
    (made,) = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=20, ignore_eos=True, stop=stop))
    assert made.finished is FinishReason.STOP
    assert made.text == whole.text[: whole.text.index(stop)]
    assert made.tokens == whole.tokens[: len(made.tokens)]


def test_deltas_add_up_to_what_generate_gives(llm):
    """Streaming is the same run: tokens and texts, one after the other, are the whole, and each prompt ends once."""
    params = SamplingParams(max_tokens=12, stop=["w5"])
    made = llm.generate(PROMPTS, params)
    tokens, texts, ends = {0: (), 1: (), 2: ()}, {0: "", 1: "", 2: ""}, {}
    for delta in llm.stream(PROMPTS, params):
        assert delta.request not in ends
        tokens[delta.request] += delta.tokens
        texts[delta.request] += delta.text
        if delta.finished is not None:
            ends[delta.request] = delta.finished
    assert [tokens[at] for at in range(3)] == [m.tokens for m in made]
    assert [texts[at] for at in range(3)] == [m.text for m in made]
    assert [ends[at] for at in range(3)] == [m.finished for m in made]


def test_who_stops_listening_aborts_the_rest(llm):
    """A stream that is closed early leaves no request behind; the next prompts find a whole engine."""
    stream = llm.stream(PROMPTS, SamplingParams(max_tokens=30, ignore_eos=True))
    next(stream)
    assert llm.counts.running > 0
    before = llm.counts.finished.get("abort", 0)
    stream.close()
    assert llm.counts.finished["abort"] == before + 3


def test_prompts_that_can_never_be_served_are_refused_together(llm):
    """An empty prompt, one that is too long, an id that there is not, and room that the cache does not have."""
    with pytest.raises(RequestError) as caught:
        llm.generate([[], [1] * 64, [1, 96], "w3"])
    assert [p.where for p in caught.value.problems] == ["prompt 0", "prompt 1", "prompt 2"]


def test_a_prompt_larger_than_the_cache_is_refused(spec):
    """Waiting would never end: with too few blocks for prompt and answer the request says so at once."""
    small = attrs.evolve(spec, kv_cache=attrs.evolve(spec.kv_cache, num_blocks=6))
    with pytest.raises(RequestError, match="at most the 5 blocks of the cache"):
        llm_of(small).generate([[3] * 20], SamplingParams(max_tokens=10))


def test_stop_texts_need_a_tokenizer(spec):
    """An engine of ids alone could not find them, and would run to the end."""
    with pytest.raises(RequestError, match="no tokenizer"):
        tiny_engine(spec).generate([[3, 4]], SamplingParams(stop=["w5"]))


def test_a_program_with_an_executor_of_its_own_is_refused(spec):
    """`LLM` drives the reference engine's steps and no others."""
    with pytest.raises(EnvironmentProblem, match="executor of its own"):
        LLM(spec, ready=Ready(source=object(), manager=None, report=None))
