"""Ranks that start together have one set of keys, read a remote tier once, and capture one set of graphs."""

import pytest
import yaml

from support import toy
from support.processes import run_module


@pytest.fixture(scope="module")
def answers(tmp_path_factory, tiny_checkpoint):
    """What each of two ranks answered, by case. The tier holds what the toy program needs, the ranks' folders nothing."""
    base = tmp_path_factory.mktemp("start")
    config, tier, meeting = base / "engine.yaml", base / "tier", base / "meeting"
    meeting.mkdir()
    data = {
        "model": {"source": str(tiny_checkpoint), "max_model_len": 128},
        "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
        "kv_cache": {"block_size": 8, "num_blocks": 128},
        "speculative": {"method": "ngram", "num_speculative_tokens": 2},
        "program": toy.NAME,
    }
    config.write_text(yaml.safe_dump(data))
    tier.mkdir(mode=0o700)
    module = "support.fleet_rank_actions"
    said = run_module(module, str(config), str(tier), str(meeting), "2", OMP_NUM_THREADS="1")
    return said["2"]


def test_a_rank_that_differs_is_named_with_each_field(answers):
    """The variable and the field of the unit are a problem each, the same on both ranks, and the hosts are told."""
    first, second = (rank["differing"] for rank in answers)
    assert first == second
    *fields, hosts = first
    assert [where for where, _, _ in fields] == [
        "toolchain.environment.TORCHINDUCTOR_FREEZING",
        "unit scale: scope.model.rms_norm_eps",
    ]
    assert all("on rank 1" in found for _, found, _ in fields)
    assert hosts[0] == "hosts"
    assert "rank 1 on " in hosts[1]


def test_rank_0_alone_reads_the_tier_and_all_have_the_entries(answers):
    """Rank 1 cannot see the tier, and has both entries in its folder afterwards. A second time nothing is asked for."""
    assert [rank["fetching"] for rank in answers] == [
        [2, 0, {}, ["hit", "hit"], 0],
        [2, 2, {}, ["hit", "hit"], 0],
    ]


def test_a_rank_that_cannot_keep_entries_holds_up_nobody(answers):
    """Each entry that it could not store is a problem there, and only there."""
    assert [rank["refused"] for rank in answers] == [0, 2]


def test_ranks_start_without_a_compile_and_with_the_same_graphs(answers):
    """All units of both ranks come from the tier that one of them reads."""
    first, second = (rank["starting"] for rank in answers)
    assert first == second
    assert first[:2] == [0, 2]
    assert first[2]
