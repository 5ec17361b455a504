"""A matrix is every combination once, and everything that is wrong with it is said at once."""

import pytest
import yaml

from graphspec.errors import SpecError
from graphspec.fleet.matrix import ALIASES, Axis, expand
from support import toy


@pytest.fixture
def config(tmp_path, tiny_config):
    """A file with the toy program's config."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    return str(path)


def test_every_combination_is_a_variant_with_a_label_of_its_own(config):
    """Two axes of two values are four variants, the last axis fastest."""
    axes = [Axis.parse("tp=1,2"), Axis.parse("scheduler.max_num_seqs=2,4")]
    variants = expand([config], axes)
    assert [
        (v.spec.parallel.tensor_parallel_size, v.spec.scheduler.max_num_seqs) for v in variants
    ] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert len({v.label for v in variants}) == 4
    assert variants[1].label == f"{config} tp=1 scheduler.max_num_seqs=4"


def test_without_axes_each_file_is_one_variant(config):
    """No axis is one combination: the file as it is."""
    (variant,) = expand([config], settings=["scheduler.max_num_seqs=2"])
    assert variant.label == config
    assert variant.spec.scheduler.max_num_seqs == 2


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_a_field_that_exists(alias, tiny_spec):
    """Each short name leads to a field of the contract."""
    value = tiny_spec
    for name in ALIASES[alias].split("."):
        value = getattr(value, name)


def test_a_comma_inside_of_brackets_is_part_of_a_value():
    """A table of depths is one value."""
    path = "speculative.num_speculative_tokens_per_batch_size"
    axis = Axis.parse(f"{path}=[[1, 4, 2]],[[1, 2, 2], [3, 4, 1]]")
    assert axis.values == ("[[1, 4, 2]]", "[[1, 2, 2], [3, 4, 1]]")


def test_a_value_that_is_named_twice_counts_once():
    """Equal values would be equal variants."""
    assert Axis.parse("tp=1, 2,1").values == ("1", "2")


@pytest.mark.parametrize("text", ["tp", "tp=", "=1", "tp=1,,2", ""])
def test_an_axis_that_is_none_says_how_one_is_written(text):
    """The error names the option and gives an example."""
    with pytest.raises(SpecError) as caught:
        Axis.parse(text)
    (problem,) = caught.value.problems
    assert problem.where == f"--matrix {text}"
    assert "tp=1,2,4" in problem.wanted


def test_the_problems_of_all_variants_are_one_error(config):
    """Two values that no config may have are two problems, each with its variant in front."""
    with pytest.raises(SpecError) as caught:
        expand([config], [Axis.parse("tp=0,1,-3")])
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].where.startswith(f"{config} tp=0: ")


def test_a_file_or_a_field_that_is_named_twice_is_refused(config):
    """Two axes of one field would overwrite each other, and one alias hides that."""
    axes = [Axis.parse("tp=1,2"), Axis.parse("parallel.tensor_parallel_size=4")]
    with pytest.raises(SpecError) as caught:
        expand([config, config], axes)
    assert [p.where for p in caught.value.problems] == [
        f"--config {config}",
        "--matrix parallel.tensor_parallel_size",
    ]


def test_a_matrix_that_is_too_large_is_refused_before_it_is_made(config):
    """The product of the axes is counted first."""
    axes = [Axis.parse(f"f{n}={','.join(map(str, range(100)))}") for n in range(3)]
    with pytest.raises(SpecError, match="1000000 variants"):
        expand([config], axes)
