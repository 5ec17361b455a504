"""The comparison table of methods: read from the classes, and printed on the docs page."""

from pathlib import Path

import pytest

from graphspec.speculators.comparison import COLUMNS, comparison, formula
from graphspec.speculators.registry import known_methods, speculator_config_class

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_the_docs_show_the_table_as_it_is():
    """Each row of docs/methods.md is what the classes say, in order."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    printed = [
        tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in rows
    ]
    assert printed == [tuple(row) for row in comparison()]


def test_every_method_has_a_row():
    """No method, built in or registered, is left out."""
    named = {row[0].split(" ")[0] for row in comparison()}
    assert named == set(known_methods())
    assert all(len(row) == len(COLUMNS) for row in comparison())


@pytest.mark.parametrize("name", known_methods())
def test_every_number_is_a_formula_in_k(name):
    """Lookahead, prefill lookahead and slots are constant or k plus a constant, and never negative."""
    for _, example in speculator_config_class(name).examples():
        for count in (
            example.num_lookahead_tokens,
            example.num_prefill_lookahead_tokens,
            example.max_num_new_slots_for_drafting,
        ):
            assert ":" not in formula(count)
            assert all(count(k) >= 0 for k in range(1, 33))
