"""Engines for the tests of graph modes: short names of modes and levels, any engine, and what a decision says."""

import attrs
import pytest
from hypothesis import strategies as st

from graphspec.config.compilation import (
    AttentionSupport,
    CompileMode,
    CudagraphMode,
)
from graphspec.config.parallel import All2AllBackend
from graphspec.errors import SpecError
from graphspec.resolve.decision import ModeFacts
from graphspec.resolve.modes import decide_mode

NONE, PIECEWISE, FULL, DECODE_ONLY, BOTH = MODES = tuple(CudagraphMode)
NEVER, SINGLE, UNIFORM, ALWAYS = LEVELS = tuple(AttentionSupport)
ERROR = None

UNCUT = {
    "splitting ops without attention": {"splits_attention": False},
    "no splitting ops": {"splitting_ops_empty": True},
    "no splitting ops for the compiler's cut": {
        "splitting_ops_empty": True,
        "inductor_partition": True,
    },
    "fused attention": {"fuse_attention_quant": True},
    "no compiled part": {"model_compiled": False},
    "no compiler": {"compile_mode": CompileMode.NONE},
    "stock compiler on v1": {"compile_mode": CompileMode.STOCK, "runner_v2": False},
    "encoder and decoder": {"encoder_decoder": True},
    "encoder and decoder with breaks": {"encoder_decoder": True, "breakable": True},
}
CUT = {
    "by the tracer": {},
    "by the compiler": {"inductor_partition": True, "splits_attention": False},
    "by the compiler around a fused kernel": {
        "inductor_partition": True,
        "fuse_attention_quant": True,
    },
    "by breaks": {"breakable": True, "compile_mode": CompileMode.NONE, "model_compiled": False},
    "by breaks in one piece": {"breakable": True, "splitting_ops_empty": True},
}

VALUES = {
    bool: st.booleans(),
    int: st.integers(1, 3),
    str: st.sampled_from(["", "FAKE"]),
    AttentionSupport: st.sampled_from(LEVELS),
    CompileMode: st.sampled_from(list(CompileMode)),
    All2AllBackend | None: st.none() | st.sampled_from(list(All2AllBackend)),
}
SOME = {
    # True is rare in one fact, else most engines could do nothing at all.
    field.name: st.integers(0, 7).map(
        lambda n, default=field.default: default if n else not default
    )
    if field.type is bool
    else VALUES[field.type]
    for field in attrs.fields(ModeFacts)
}
engines = st.builds(ModeFacts, **SOME)
modes = st.sampled_from(MODES)


def codes(decision):
    return [reason.partition(": ")[0] for reason in decision.reasons]


def refusals(call):
    with pytest.raises(SpecError) as caught:
        call()
    return caught.value.problems


def granted_or_none(mode, facts):
    """The decision, or nothing where no mode is possible."""
    try:
        return decide_mode(mode, facts)
    except SpecError:
        return None
