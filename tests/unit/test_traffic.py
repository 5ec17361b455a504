"""Traffic of batch sizes: what files say, every mistake in them with its line, and what each depth serves."""

import json
import math

import pytest

from graphspec.capture.traffic import SHOWN, Demand, Traffic
from graphspec.capture.traffic_file import read_traffic
from graphspec.config.schedule import KSchedule, dense_schedule
from graphspec.errors import TrafficError

WANTED = ((1, 3), (2, 4), (8, 1.5))


def problems(call, *arguments, **options):
    with pytest.raises(TrafficError) as caught:
        call(*arguments, **options)
    assert caught.value.exit_code == 2
    return caught.value.problems


def file(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"about": "x", "batch_sizes": {"2": 4, "1": 3, "8": 1.5, "9": 0}}'),
        ("t.csv", "batch_size,count\n2,4\n1, 3\n8,1.5\n"),
        ("t.csv", "2,1\n1,3\r\n8,15e-1\n2,3\n"),
        ("t.CSV", "\ufeff# made by hand\nsize,count\n2,4\n1,3\n8,1.5"),
        ("steps.log", "2 4\n\n1\n1 # twice\n1\n8\t1.5\n"),
        ("steps", "# steps\n2 3\n2\n1 3\n8 .5\n8"),
    ],
)
def test_a_file_of_each_kind_is_read(tmp_path, name, text):
    """JSON, CSV with and without a header, and logs: the same histogram."""
    assert read_traffic(file(tmp_path, name, text)).weights == WANTED


def test_every_mistake_of_a_log_is_told_with_its_line(tmp_path):
    """Words, fractions, negative counts, sizes below 1 and above the maximum: all at once, none as a traceback."""
    text = "4\nfour\n0\n2 -1\n2.5\n1 2 3\n70\n8 nan\n70\n3 1e999\n"
    path = file(tmp_path, "steps.log", text)
    found = problems(read_traffic, path, max_num_seqs=64)
    assert [(p.where.removeprefix(path), p.found) for p in found] == [
        (":2", "'four' (a string)"),
        (":3", "a batch size of 0 (an integer)"),
        (":4", "a weight of -1 (an integer)"),
        (":5", "a batch size of 2.5 (a float)"),
        (":6", "'1 2 3' (a string)"),
        (":8", "'8 nan' (a string)"),
        (":10", "a weight of inf (a float)"),
        (":7", "70 requests, here and on 1 more line"),
    ]
    assert found[-1].wanted == "at most scheduler.max_num_seqs, which is 64"


def test_every_mistake_of_a_csv_is_told_with_its_line(tmp_path):
    """A row of one cell or three, and a second header, are rows that cannot be read."""
    path = file(tmp_path, "t.csv", "size,count\nsize,count\n8\n8,1,2\n8,1\n")
    found = [(p.where.removeprefix(path), p.found) for p in problems(read_traffic, path)]
    assert found == [
        (":1", "'size,count' (a string), here and on 1 more line"),
        (":3", "'8' (a string)"),
        (":4", "'8,1,2' (a string)"),
    ]


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ('{"batch_sizes": {\n"one": 1}}', ":2", "a batch size of 'one' (a string)"),
        ('{"batch_sizes": {"1": "many"}}', ":1", "a weight of 'many' (a string)"),
        ('{"batch_sizes": {"1": true}}', ":1", "a weight of true (a boolean)"),
        ('{"batch_sizes": {"1": null}}', ":1", "a weight of nothing (null)"),
        ('{\n"batch_sizes": [1, 2]}', ":2: batch_sizes", "[1, 2] (a list)"),
        ('{"sizes": {"1": 1}}', ":1: batch_sizes", "no such key"),
        ("[1, 2]", ":1: batch_sizes", "[1, 2] (a list)"),
        ('{"batch_sizes": {"1": 0}}', "", "no decode step"),
        ('{"batch_sizes": {}}', "", "no decode step"),
        ('{"batch_sizes": {"1": 1', ":1:24", "invalid JSON: the end of the text"),
    ],
)
def test_every_mistake_of_a_json_histogram_is_told_with_its_line(tmp_path, text, where, found):
    """Wrong keys, wrong weights, another shape, nothing at all, and text that is no JSON."""
    path = file(tmp_path, "t.json", text)
    (problem,) = problems(read_traffic, path)
    assert (problem.where.removeprefix(path), problem.found) == (where, found)


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path):
    """No such file, a folder, and bytes that are not text."""
    binary = file(tmp_path, "x.log", b"\xff\xfe1")
    for path in (str(tmp_path / "none.log"), str(tmp_path), binary):
        (problem,) = problems(read_traffic, path)
        assert problem.where == path
        assert "cannot be read" in problem.found


def test_a_message_lists_no_million_problems(tmp_path):
    """The first problems are listed, the others counted."""
    path = file(tmp_path, "x.log", "".join(f"x{i}\n" for i in range(SHOWN + 7)))
    found = problems(read_traffic, path)
    assert len(found) == SHOWN + 1
    assert found[-1].found == "7 more problems, the first here"
    assert found[-1].where == f"{path}:{SHOWN + 1}"


def test_what_it_writes_it_reads(tmp_path):
    """A histogram of every size comes back as it was."""
    traffic = Traffic.from_sizes([1, 1, 5, 64, 3, 5, 5])
    data = {"batch_sizes": dict(traffic.weights)}
    assert read_traffic(file(tmp_path, "t.json", json.dumps(data))) == traffic


def test_a_histogram_in_python_is_checked_as_a_file_is():
    """Sizes below 1, negative and endless weights, and no steps at all."""
    found = problems(Traffic.of, {0: 1, True: 1.0, 2: -1, 3: math.inf, "4": 1})
    assert len(found) == 5
    assert problems(Traffic.of, {})[0].found == "no decode step"
    assert problems(Traffic.from_sizes, [])[0].found == "no decode step"


def test_traffic_knows_its_shares():
    """Total, largest, and the share of a size that occurs or not."""
    traffic = Traffic.of({1: 3, 4: 1, 9: 0})
    assert (traffic.total, traffic.largest) == (4, 4)
    assert (traffic.share(1), traffic.share(9)) == (0.75, 0)
    assert Traffic.uniform(3).weights == ((1, 1), (2, 1), (3, 1))


def test_a_schedule_splits_traffic_by_depth():
    """Each size goes to its depth, deepest first; a depth without traffic is there with its largest size."""
    schedule = dense_schedule([(1, 2, 4), (3, 8, 2), (9, 16, 0)], 4, 16)
    assert Traffic.of({1: 1, 2: 5, 7: 2}).split(schedule) == (
        Demand(k=4, top=2, steps=((1, 1), (2, 5))),
        Demand(k=2, top=8, steps=((7, 2),)),
        Demand(k=0, top=16, steps=()),
    )


def test_tiers_of_equal_depth_are_one_demand():
    """Their graphs are shared, so is their traffic, and the top is the later tier's."""
    schedule = KSchedule(dense=(0, 3, 1, 3, 3))
    assert Traffic.uniform(4).split(schedule) == (
        Demand(k=3, top=4, steps=((1, 1), (3, 1), (4, 1))),
        Demand(k=1, top=2, steps=((2, 1),)),
    )


def test_traffic_beyond_the_schedule_is_refused_by_name():
    """Each size is told with its share of the steps."""
    found = problems(Traffic.of({4: 3, 9: 1}).split, dense_schedule(None, 2, 8))
    assert [(p.found, p.wanted) for p in found] == [
        ("9 requests in 25.00% of the steps", "at most scheduler.max_num_seqs, which is 8")
    ]
