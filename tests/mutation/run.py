"""Mutation testing (F41) of the keys package and the entry modules: every change that mutmut makes of their code must
fail a test, or have a reason.

    python tests/mutation/run.py                       all of them
    python tests/mutation/run.py compare entry         two modules
    python tests/mutation/run.py --tests tests/unit/test_compare.py compare
                                                       a quick look, against some tests only

mutmut makes the mutants (`pip install mutmut==3.8.1`; it is not among the project's dependencies); running them is done
here, since mutmut's way of switching mutants adds frames to every call, which the watch over traces sees, and collects all
tests anew for each mutant. The tests are collected once. For each mutant a forked process swaps the code of one function
(`forks.py`) and runs the tests that reach it. What survives that is written into a copy of the tree and tried once more by
processes of its own, since a swap comes too late for what ran at import and does not reach processes that tests start.

`survivors.toml` has a reason for each mutant that may live. Exit status 1: a survivor has none, or a reason has no survivor.
"""

import argparse
import collections
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "mutants"
TREE = ("graphspec", "cache", "capture", "kernels", "tests", "docs", "examples", "bench")
FILES = ("pyproject.toml", "_graphspec_pytest.py", "README.md", "CHANGELOG.md", "constraints.txt")
Name = tuple[str, str, str]


def main(arguments: Sequence[str]) -> int:
    """Runs the mutants and prints a summary by module."""
    settings = tomllib.loads((HERE / "mutmut.toml").read_text(encoding="utf-8"))
    reasons = _reasons()
    known = _modules(settings)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=[*known, []], metavar="MODULE")
    parser.add_argument(
        "--tests", nargs="+", metavar="FILE", help="in place of those of mutmut.toml"
    )
    parser.add_argument("--function", metavar="NAME", help="one function or method alone")
    options = parser.parse_args(arguments)
    try:
        import mutmut  # noqa: F401
    except ImportError:
        print("mutmut is missing: pip install mutmut==3.8.1", file=sys.stderr)
        return 3
    modules = [known[name] for name in options.modules or known]
    os.chdir(ROOT)
    # The mutants of this checkout, whatever is installed; also in the processes that tests start.
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("HYPOTHESIS_PROFILE", "ci")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT))
    return _run(modules, reasons, options)


@attrs.frozen
class Module:
    """A module to mutate, and the table of mutmut.toml that names its tests."""

    name: str
    path: Path
    table: Mapping[str, Any] = attrs.field(repr=False)


def _modules(settings: Mapping[str, Any]) -> Mapping[str, Module]:
    found = {}
    for table in settings.values():
        folder = ROOT / table["folder"]
        stems = table.get("modules") or sorted(path.stem for path in folder.glob("*.py"))
        for stem in stems:
            if stem not in table.get("left_out", ()):
                *inside, name = stem.split(".")
                assert name not in found, f"two modules are called {name}"
                path = folder.joinpath(*inside, f"{name}.py")
                found[name] = Module(f"{table['package']}.{stem}", path, table)
    return found


def _reasons() -> Mapping[Name, str]:
    data = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))
    return {(s["function"], s["was"], s["becomes"]): s["reason"] for s in data.get("survivor", [])}


def _run(modules: Sequence[Module], reasons: Mapping[Name, str], options: Any) -> int:
    import pytest
    from forks import Forks
    from mutants import mutants_of

    mutants = [mutant for module in modules for mutant in mutants_of(module.name, module.path)]
    if options.function:
        mutants = [m for m in mutants if m.function == options.function]
    print(f"{len(mutants)} mutants of {len(modules)} modules", flush=True)
    forks = Forks(mutants, _tell(reasons))
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not deep"]
    tests = options.tests or sorted({test for m in modules for test in m.table["tests"]})
    plain = ["-o", "addopts=--import-mode=importlib", "-o", "timeout=0"]
    status = pytest.main([*quiet, *plain, *tests], plugins=[forks])
    if forks.broken or not forks.verdicts:
        print(f"without any mutant (pytest: {status}):", *forks.broken, sep="\n  ")
        return 3
    alive = [v for v in forks.verdicts if v.outcome in ("survived", "uncovered")]
    survivors = {v.mutant.name for v in alive}
    wrong = _retried(
        [v for v in alive if v.mutant.name not in reasons],
        {} if options.tests else {m.name: m.table for m in modules},
    )
    whole = not options.tests and not options.function
    idle = [n for n in reasons if n[0].startswith(tuple(f"{m.name}." for m in modules))]
    idle = [n for n in idle if n not in survivors] if whole else []
    _summary(forks.verdicts, wrong, reasons)
    for what, names in (("a survivor without a reason", wrong), ("a reason for none", idle)):
        for function, was, becomes in names:
            print(f"{what}: {function}\n  - {was}\n  + {becomes}")
    return 1 if wrong or idle else 0


def _tell(reasons: Mapping[Name, str]) -> Any:
    def tell(verdict: Any) -> None:
        if verdict.outcome != "killed" and verdict.mutant.name not in reasons:
            function, was, becomes = verdict.mutant.name
            print(f"{verdict.outcome}: {function}\n  - {was}\n  + {becomes}", flush=True)

    return tell


def _retried(found: Sequence[Any], tables: Mapping[str, Mapping[str, Any]]) -> list[Name]:
    """Those of the survivors that also survive in a tree of their own."""
    if not found or not tables:
        return [verdict.mutant.name for verdict in found]
    tree = BUILD / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in TREE:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, tree / name)
    return [v.mutant.name for v in found if not _fails(tree, v.mutant, tables[v.mutant.module])]


def _fails(tree: Path, mutant: Any, table: Mapping[str, Any]) -> bool:
    place = tree / Path(mutant.file).relative_to(ROOT)
    place.write_text(mutant.source, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not deep",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            [*command, *table["tests"], *table["again"]],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=1800,
            check=False,
        )
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    shutil.copy2(mutant.file, place)
    print(f"{'killed' if failed else 'survived'} in a tree of its own: {mutant.name}", flush=True)
    return failed


def _summary(verdicts: Sequence[Any], wrong: Sequence[Name], reasons: Mapping[Name, str]) -> None:
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for verdict in verdicts:
        outcome = verdict.outcome
        if outcome in ("survived", "uncovered"):
            name = verdict.mutant.name
            outcome = "open" if name in wrong else "reason" if name in reasons else "killed apart"
        rows[verdict.mutant.module][outcome] += 1
    columns = ("killed", "timeout", "killed apart", "reason", "open")
    print(f"{'module':<32} mutants " + " ".join(f"{c:>12}" for c in columns))
    for module, count in rows.items():
        print(f"{module:<32} {count.total():>7} " + " ".join(f"{count[c]:>12}" for c in columns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
