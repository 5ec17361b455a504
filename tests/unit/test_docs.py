"""The pages are true: their Python runs, their links lead somewhere, and no config field is missing."""

import enum
import importlib
import pkgutil
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import graphspec.config
import graphspec.resolve
import graphspec.speculators
from graphspec.annotations import alternatives, is_mapping
from graphspec.cache.load import UnitResult
from graphspec.cache.store import Outcome
from graphspec.capture.report import Decisions, GraphReport, WarmupReport
from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import FieldPolicy, field_types, is_config_class, policies
from graphspec.resolve.decision import ModeDecision
from graphspec.speculators import registry

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
    # A page may register a method, which no other test should see.
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
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


def kind(annotation: Any, policy: FieldPolicy) -> str:
    """A type as people say it, with the field's bounds. That nothing is accepted too, the default says."""
    parts = [p for p in alternatives(annotation) if p is not type(None)]
    if len(parts) > 1:
        return " or ".join(kind(p, policy) for p in parts)
    (part,) = parts
    if typing.get_origin(part) is tuple:
        items = typing.get_args(part)
        item = kind(items[0], policy).replace("list of", "lists of", 1)
        count = "" if items[-1] is Ellipsis else f"{len(items)} "
        return f"list of {count}{item.removesuffix('s')}s"
    if is_mapping(part):
        return "mapping"
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in part)
    if is_config_class(part):
        return "section"
    return WORDS[part] + bounds(policy) * (part in (int, float))


WORDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def bounds(policy: FieldPolicy) -> str:
    low, high = policy.minimum, policy.maximum
    if low is None:
        return "" if high is None else f" <= {high}"
    return f" >= {low}" if high is None else f", {low} to {high}"


def default_of(cls: type, field: str) -> str:
    """What stands for a field that is not written."""
    value = attrs.fields_dict(cls)[field].default
    if value is attrs.NOTHING:
        return "required"
    if is_config_class(type(value)):
        return "its defaults"
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    return f"`{value}`" if isinstance(value, str) else str(value) if value else "empty"


def row(cls: type, field: str) -> str:
    """The line of docs/config.md for a field: what its declaration says. Only what users write has type and default."""
    policy = policies(cls)[field]
    text = policy.doc if policy.stage else f"{policy.doc} In no key: {policy.reason}."
    cells = [f"`{field}`", policy.stage.name if policy.stage else "none", text]
    if cls in WRITTEN:
        cells[1:1] = [kind(field_types(cls)[field], policy), default_of(cls, field)]
    return f"| {' | '.join(cells)} |"


def reachable(cls: type) -> Iterator[type]:
    yield cls
    for annotation in field_types(cls).values():
        for part in filter(is_config_class, alternatives(annotation)):
            yield from reachable(part)


WRITTEN = set(reachable(EngineConfig))
"""Classes of the sections that users write."""


def section_of(text: str, name: str) -> str:
    """The part of a page from the heading that has `name` in it to the next of its level."""
    for heading in HEADING.finditer(text):
        if name in heading["title"]:
            rest = text[heading.end() :]
            level = len(heading["level"])
            end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
            return rest[: end.start()] if end else rest
    return ""


@pytest.mark.parametrize("cls", config_classes(), ids=lambda cls: cls.__name__)
def test_config_page_has_every_field(cls):
    """docs/config.md has a heading for each config class, and below it a row for each field, as its declaration says."""
    section = section_of((ROOT / "docs" / "config.md").read_text(), f"`{cls.__name__}`")
    assert section, f"no heading names `{cls.__name__}`"
    missing = [line for f in policies(cls) if (line := row(cls, f)) not in section.splitlines()]
    assert not missing, "\n".join(missing)


def test_config_page_has_no_row_of_a_field_that_is_gone():
    """A field that is renamed or removed leaves no row behind."""
    text = (ROOT / "docs" / "config.md").read_text()
    rows = {row(cls, field) for cls in config_classes() for field in policies(cls)}
    printed = re.findall(r"^\| `.* \| (?:COMPILE|CAPTURE|none) \| .*$", text, re.MULTILINE)
    assert [line for line in printed if line not in rows] == []


@pytest.mark.parametrize("group", sorted({p.group for p in policies(SpeculativeConfig).values()}))
def test_config_page_groups_the_speculative_fields(group):
    """Each group of the speculative section is a heading on the page with the rows of its fields and no others."""
    text = (ROOT / "docs" / "config.md").read_text()
    part = section_of(section_of(text, "`SpeculativeConfig`"), group.capitalize())
    fields = [name for name, policy in policies(SpeculativeConfig).items() if policy.group == group]
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == fields


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


def test_promises_page_names_tests_that_exist():
    """Each promise P1 to P23 has a row, and each test that it names is a function below tests/."""
    rows = re.findall(
        r"^\| (P\d+) \| .* \| (.*) \|$", (ROOT / "docs/promises.md").read_text(), re.MULTILINE
    )
    assert [number for number, _ in rows] == [f"P{n}" for n in range(1, 24)]
    functions = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    named = {name for _, tests in rows for name in re.findall(r"`(\w+)`", tests)}
    assert sorted(named - functions) == []
