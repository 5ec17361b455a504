"""What doctor says of the environment: what acts on code and graphs, what is not known, and no secret."""

from graphspec.cli.checks import environment

PLAIN = {"HOME": "/root", "RANK": "3", "HF_TOKEN": "hf_secret"}


def test_a_plain_environment_is_fine():
    """Locations, ranks and secrets change nothing, and are not shown."""
    check = environment(PLAIN)
    assert check.ok
    assert check.found == "no variable changes code or graphs"


def test_variables_that_act_are_named_with_their_values():
    """Those of compiled code and those of captured graphs, sorted within each."""
    check = environment({**PLAIN, "TRITON_F32_DEFAULT": "ieee", "NCCL_ALGO": "Ring"})
    assert check.ok
    assert "TRITON_F32_DEFAULT=ieee" in check.found
    assert "NCCL_ALGO=Ring" in check.found
    assert "hf_secret" not in check.found


def test_a_variable_that_looks_as_if_it_acted_is_a_problem():
    """A misspelt or new variable would be without effect, in silence."""
    check = environment({**PLAIN, "TORCHINDUCTOR_MAX_AUTOTUNE_": "1"})
    assert not check.ok
    assert "not known: TORCHINDUCTOR_MAX_AUTOTUNE_" in check.found
