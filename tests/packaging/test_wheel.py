"""What users install: the wheel has all parts, its top-level names are ours alone, and no bare folder name leaks."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("graphspec", "graphspec.cache", "graphspec.capture", "graphspec.kernels")


def run(*command, **options):
    return subprocess.run(
        [str(c) for c in command], check=True, capture_output=True, text=True, **options
    ).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `python -m build` makes of a copy of the tracked files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    run("git", "checkout-index", "--all", f"--prefix={source}/", cwd=ROOT)
    run(sys.executable, "-P", "-m", "build", "--wheel", "--outdir", out, source, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_top_level_names_are_graphspec_and_its_pytest_plugin(wheel):
    """Nothing generic such as `cache` or `kernels` is installed, and no test or bench."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info/" not in n}
    assert tops == {"graphspec", "_graphspec_pytest.py"}
    assert "graphspec/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)


@pytest.mark.slow
def test_every_package_folder_is_in_the_wheel(wheel):
    """Each module of the checkout's four parts is packaged: the list in pyproject.toml forgets none."""
    with zipfile.ZipFile(wheel) as archive:
        packaged = set(archive.namelist())
    folders = {"graphspec": "graphspec"} | {
        part: f"graphspec/{part}" for part in ("cache", "capture", "kernels")
    }
    for folder, place in folders.items():
        for module in (ROOT / folder).rglob("*.py"):
            assert f"{place}/{module.relative_to(ROOT / folder)}" in packaged


@pytest.mark.slow
def test_a_clean_environment_imports_all_parts(wheel, tmp_path):
    """Installed into a new venv and used from elsewhere, all four parts import, and the command answers."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    code = f"import importlib; [print(importlib.import_module(n).__file__) for n in {PARTS}]"
    files = run(python, "-c", code, cwd=tmp_path).split()
    assert all(f.startswith(str(venv)) for f in files)
    assert "warmup" in run(venv / "bin" / "graphspec", "--help", cwd=tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_imports_from_a_checkout_that_is_not_installed(part, tmp_path):
    """With the checkout on the path alone, `import graphspec.cache` works: the path hook finds the folder."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import importlib; "
        f"print(importlib.import_module({part!r}).__file__)"
    )
    assert run(sys.executable, "-P", "-c", code, cwd=tmp_path).startswith(str(ROOT))
