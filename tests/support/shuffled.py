"""A pytest plugin that runs the collected tests in another order: ``-p support.shuffled --order SEED``."""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--order SEED``."""
    parser.addoption("--order", type=int, required=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles them, the same for equal seeds."""
    random.Random(config.getoption("--order")).shuffle(items)
