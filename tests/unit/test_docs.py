"""The pages are true: their Python runs, their links lead somewhere, and no config field is missing."""

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphspec.config
import graphspec.resolve
import graphspec.speculators
from graphspec.cache.load import UnitResult
from graphspec.cache.store import Outcome
from graphspec.capture.report import Decisions, GraphReport, WarmupReport
from graphspec.config.compilation import CudagraphMode
from graphspec.fields import is_config_class, policies
from graphspec.resolve.decision import ModeDecision

ROOT = Path(__file__).resolve().parents[2]
RUN = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES = [*RUN, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "changelog.d" / "README.md"]
LANGUAGES = {"console", "mermaid", "python", "python no-run", "text", "toml", "yaml"}

FENCED = re.compile(r"^```(?P<kind>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
LINK = re.compile(r"\[[^]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^(?P<level>#{1,6}) (?P<title>.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line number and code of each Python block that is meant to run."""
    for block in FENCED.finditer(text):
        if block["kind"] == "python":
            yield text.count("\n", 0, block.start("body")), block["body"]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    titles = (h["title"].lower() for h in HEADING.finditer(FENCED.sub("", page.read_text())))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def config_classes() -> list[type]:
    """Every config class that is defined below the declarative packages."""
    found: dict[str, type] = {}
    for package in (graphspec.config, graphspec.resolve, graphspec.speculators):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(info.name)).values():
                if is_config_class(value) and value.__module__.startswith(package.__name__):
                    found[value.__name__] = value
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_python_blocks_run(page, monkeypatch, tmp_path):
    """The blocks of a page run one after another in one namespace, from the repository root."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("GRAPHSPEC_CACHE_DIR", str(tmp_path / "cache"))
    namespace = {"__name__": "__main__"}
    for line, code in python_blocks(page.read_text()):
        exec(compile("\n" * line + code, name_of(page), "exec"), namespace)
    assert not (tmp_path / "cache").exists(), "a block wrote to the cache; mark it no-run"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_is_closed_and_of_a_known_kind(page):
    """A misspelt fence would be a block that no test runs."""
    text = page.read_text()
    assert {block["kind"] for block in FENCED.finditer(text)} <= LANGUAGES
    assert "```" not in FENCED.sub("", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page):
    """Every relative link names a file that exists, and a heading in it where it names one."""
    for link in LINK.finditer(FENCED.sub("", page.read_text())):
        path, _, anchor = link["target"].partition("#")
        if path.startswith(("http:", "https:", "mailto:")):
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{link['target']} does not exist"
        assert not anchor or anchor in anchors(target), (
            f"no heading {anchor} in {path or page.name}"
        )


@pytest.mark.parametrize("cls", config_classes(), ids=lambda cls: cls.__name__)
def test_config_page_has_every_field(cls):
    """docs/config.md has a heading for each config class, and below it a row for each field with the key it enters."""
    text = (ROOT / "docs" / "config.md").read_text()
    parts = re.split(r"^#{3,4} ", text, flags=re.MULTILINE)
    section = next((p for p in parts if f"`{cls.__name__}`" in p.splitlines()[0]), "")
    assert section, f"no heading names `{cls.__name__}`"
    rows = {line.split("|")[1].strip(): line for line in section.splitlines() if line[:1] == "|"}
    for field, policy in policies(cls).items():
        cells = [cell.strip() for cell in rows.get(f"`{field}`", "").split("|")]
        assert (policy.stage.name if policy.stage else "none") in cells, (field, cells)


def test_design_page_has_the_import_layers():
    """docs/design.md lists the layers that the import contract checks, in the same order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (ROOT / "docs" / "design.md").read_text()
    assert "\n".join(layers) in [block["body"].strip() for block in FENCED.finditer(page)]


def test_warmup_page_has_every_key_of_the_json_report():
    """docs/warmup.md has a row for each key that `warmup --json` prints, and for no other."""
    mode = CudagraphMode.FULL
    unit = UnitResult(
        name="",
        key="",
        outcome=Outcome.HIT,
        reason="",
        compiled=False,
        seconds=0.0,
        seconds_saved=0.0,
        bytes=0,
    )
    graphs = GraphReport(
        planned=0, captured=0, reachable=0, fallthrough=(), memory_bytes=0, verified=()
    )
    report = WarmupReport(
        spec_hash="",
        capture_hash="",
        decisions=Decisions(mode=ModeDecision(asked=mode, granted=mode)),
        units=[unit],
        graphs=graphs,
        phases={},
        seconds=0.0,
    ).as_dict()
    printed = {
        *report,
        *(f"units[].{k}" for k in report["units"][0]),
        *(f"graphs.{k}" for k in report["graphs"]),
    }
    page = (ROOT / "docs" / "warmup.md").read_text()
    table = page.partition("## JSON")[2].partition("## Findings")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == printed
