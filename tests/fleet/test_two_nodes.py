"""Two nodes with folders of their own share an S3 bucket and a Redis: what one compiles, the other never does."""

import pytest

from graphspec.fleet.places import Place
from graphspec.fleet.report import State
from support.servers import RedisServer

pytest_plugins = ("support.server_fixtures",)


@pytest.fixture
def tiers(s3_blobs, s3_endpoint, redis_blobs, redis_server: RedisServer) -> "list[str]":
    """An empty prefix of a bucket, and an empty Redis."""
    from support.server_fixtures import BUCKET

    s3 = f"s3://{BUCKET}/a/prefix?endpoint={s3_endpoint}&region=us-east-1"
    return [s3, f"redis://127.0.0.1:{redis_server.port}/0?prefix=te"]


def test_the_second_node_compiles_nothing(fleet_of, tiers, tmp_path, inline):
    """It finds all keys in the tiers, so nothing is scheduled there; and either tier alone is enough."""
    fleet = fleet_of("tp_a", "b", cache={"remote": tiers})
    report = fleet.run("tp=1,2")
    assert {job.state for job in report.jobs} == {State.COMPILED}, report.findings
    second = fleet.run(
        "tp=1,2",
        cache=str(tmp_path / "second"),
        executor=lambda: pytest.fail("a worker was asked for"),
    )
    assert {job.state for job in second.jobs} == {State.PRESENT}
    assert len(fleet.compiled) == 3
    for alone in tiers:
        one = fleet_of("tp_a", "b", cache={"remote": [alone]})
        places = {job.place for job in one.plan("tp=1,2", cache=str(tmp_path / "third")).jobs}
        assert places == {Place.SHARED}
