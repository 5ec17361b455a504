"""`LLM`: text in, text out, on an engine that is warm before the first prompt."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from graphspec.capture.report import WarmupReport
from graphspec.capture.warmup import Ready, make_ready
from graphspec.engine.executor import Executor
from graphspec.engine.generate import Generation, Generator
from graphspec.engine.metrics import EngineCounts
from graphspec.engine.request import Delta
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.tokenizer import Tokenizer, load_tokenizer
from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.spec import EngineSpec

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


class LLM:
    """The reference engine on one contract: ``LLM(graphspec.load("engine.yaml")).generate(["Once"])``.

    Making it compiles or loads every unit and captures every graph; after that nothing is compiled or captured. One caller
    at a time.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        cache_dir: str | None = None,
        ready: Ready | None = None,
        compiled_sampling: bool = False,
    ) -> None:
        """`ready` is an engine of this contract that `make_ready` made before; `compiled_sampling` as for `Generator`. Raises `EnvironmentProblem` for a program
        whose steps are not the reference engine's."""
        self.tokenizer: Tokenizer = load_tokenizer(spec.model)
        self._ready = ready or make_ready(spec, cache_dir=cache_dir)
        if not isinstance(self._ready.source, Executor):
            raise EnvironmentProblem(
                Problem(
                    where=f"program {spec.program}",
                    found="a program with an executor of its own",
                    wanted="the reference engine's, which generate drives",
                    hint="use graphspec warmup with this config, and your engine to generate",
                )
            )
        self.engine = Generator(
            self._ready.source,
            self._ready.manager,
            end_of_text=self.tokenizer.stop_ids,
            decode=self.tokenizer.decode,
            compiled_sampling=compiled_sampling,
        )

    @property
    def report(self) -> WarmupReport:
        """How the engine became ready."""
        return self._ready.report

    @property
    def counts(self) -> EngineCounts:
        """What the engine did so far, and how it stands."""
        return self.engine.counts

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """The continuation of each prompt, in their order; under `params` for all, or one each.

        Raises `RequestError` with every prompt that cannot be served, before the first step.
        """
        return self.engine.generate(self._encoded(prompts), _each(params, len(prompts)))

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Delta]:
        """What is added to each prompt, step by step; `Delta.request` is the prompt's number. The texts of a prompt's
        deltas, one after the other, are the text of its generation. Whoever stops listening aborts the rest."""
        each = _each(params, len(prompts))
        for delta, _ in self.engine.stream(self._encoded(prompts), each):
            yield delta

    def _encoded(self, prompts: Sequence[Prompt]) -> list[Sequence[int]]:
        return [self.tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]


def _each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    return params
