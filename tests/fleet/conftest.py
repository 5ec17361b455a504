"""Fixtures of fleet tests: a program whose units do what they are called, and a way to run a fleet over it."""

import os

import attrs
import pytest
import yaml

from graphspec.fleet import local
from graphspec.fleet.matrix import Axis, expand
from graphspec.fleet.plan import plan_fleet
from graphspec.fleet.run import run_fleet
from support import fake_compiler, fleet_units
from support.inline_executor import InlineExecutor
from support.mounts import mounted

__all__ = ["mounted"]


@attrs.frozen(kw_only=True)
class Fleet:
    """A config file, a cache folder, and what was compiled."""

    folder: object
    config: str
    cache: str

    def plan(self, *matrix, cache=None, **options):
        variants = expand([self.config], [Axis.parse(text) for text in matrix])
        return plan_fleet(variants, cache_dir=cache or self.cache, **options)

    def run(self, *matrix, executor=lambda: local.LocalExecutor(1), cache=None, **options):
        return run_fleet(self.plan(*matrix, cache=cache), executor, **options)

    @property
    def compiled(self):
        return sorted(fleet_units.compiles(self.folder))


@pytest.fixture
def inline(monkeypatch):
    """Workers are this process, with the stand-ins in place: also for the command line."""
    fake_compiler.install(fleet_units.compile_unit, monkeypatch.setattr)
    monkeypatch.setattr(local, "LocalExecutor", InlineExecutor)
    return InlineExecutor


@pytest.fixture
def fleet_of(tmp_path, tiny_config, monkeypatch):
    """Makes a fleet whose program has the named units."""

    def make(*units, **sections):
        monkeypatch.setenv(fleet_units.FOLDER, str(tmp_path))
        monkeypatch.setenv(fleet_units.UNITS, " ".join(units))
        monkeypatch.setenv(fleet_units.TEST, str(os.getpid()))
        path = tmp_path / "engine.yaml"
        path.write_text(yaml.safe_dump(tiny_config(program=fleet_units.NAME, **sections)))
        return Fleet(folder=tmp_path, config=str(path), cache=str(tmp_path / "cache"))

    return make
