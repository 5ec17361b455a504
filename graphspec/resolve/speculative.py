"""The speculative section resolved: the method's class with its options, and the dense depth schedule."""

from graphspec.config.schedule import dense_schedule
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.resolve.spec import SpeculativeSpec
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.speculators.registry import speculator_config_class

_DEFAULT_WINDOW = 5


def speculative_spec(config: SpeculativeConfig | None, max_num_seqs: int) -> SpeculativeSpec | None:
    """What drafting comes to, or None. Raises `SpecError` with paths below ``speculative``."""
    if config is None:
        return None
    cls = speculator_config_class(config.method)
    return SpeculativeSpec(
        method=config.method,
        num_speculative_tokens=config.num_speculative_tokens,
        schedule=dense_schedule(
            config.num_speculative_tokens_per_batch_size,
            config.num_speculative_tokens,
            max_num_seqs,
        ),
        speculator=_configure(cls, config),
    )


def _configure(cls: type[SpeculatorConfig], config: SpeculativeConfig) -> SpeculatorConfig:
    if not issubclass(cls, NgramSpeculatorConfig):
        return cls()
    low, high = config.prompt_lookup_min, config.prompt_lookup_max
    try:
        # One given value stands for both.
        return cls(
            prompt_lookup_min=low or high or _DEFAULT_WINDOW,
            prompt_lookup_max=high or low or _DEFAULT_WINDOW,
        )
    except SpecError as error:
        raise SpecError(p.under("speculative") for p in error.problems) from None
