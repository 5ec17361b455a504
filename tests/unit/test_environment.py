"""Environment variables: what can change code is in the key and reaches the compiler, the rest does neither."""

import ast
import json
import os
import re
from collections import Counter
from pathlib import Path

import attrs
import pytest
import torch

import graphspec
from graphspec.cache.compiling.compiler import _KEPT_VARIABLES, Compiler
from graphspec.cache.compiling.toolchain import toolchain
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.store import Outcome
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode
from graphspec.keys.environment import (
    HIDDEN,
    Effect,
    capture_environment,
    code_environment,
    declared_environment,
    is_secret,
    lookup,
    shown,
    unknown_variables,
)
from graphspec.keys.variables import KNOWN_PREFIXES, TABLE
from support.entries import METADATA
from support.toy import program

REVIEWED = "2.13."
"""The torch that the table was last compared with."""

EFFECTS = {
    "TORCHINDUCTOR_MAX_AUTOTUNE": Effect.CODE,
    "TORCHINDUCTOR_CPP_MARCH": Effect.CODE,
    "TORCHINDUCTOR_FREEZING": Effect.CODE,
    "TRITON_F32_DEFAULT": Effect.CODE,
    "ATEN_CPU_CAPABILITY": Effect.CODE,
    "AOTI_RUNTIME_CHECK_INPUTS": Effect.CODE,
    "CUBLAS_WORKSPACE_CONFIG": Effect.CAPTURE,
    "CUBLASLT_WORKSPACE_SIZE": Effect.CAPTURE,
    "NCCL_ALGO": Effect.CAPTURE,
    "NCCL_ANYTHING_NEW": Effect.CAPTURE,
    "OMP_NUM_THREADS": Effect.CAPTURE,
    "MKL_CBWR": Effect.CAPTURE,
    "PYTORCH_CUDA_ALLOC_CONF": Effect.CAPTURE,
    "GRAPHSPEC_CACHE_DIR": Effect.LOCATION,
    "HOME": Effect.LOCATION,
    "XDG_CACHE_HOME": Effect.LOCATION,
    "HF_HOME": Effect.LOCATION,
    "TORCHINDUCTOR_CACHE_DIR": Effect.LOCATION,
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": Effect.LOCATION,
    "TRITON_CACHE_DIR": Effect.LOCATION,
    "TRITON_PTXAS_PATH": Effect.LOCATION,
    "CXX": Effect.LOCATION,
    "CUDA_HOME": Effect.LOCATION,
    "CUDA_VISIBLE_DEVICES": Effect.HOST,
    "RANK": Effect.HOST,
    "LOCAL_RANK": Effect.HOST,
    "MASTER_PORT": Effect.HOST,
    "SLURM_JOB_ID": Effect.HOST,
    "POD_NAME": Effect.HOST,
    "NCCL_SOCKET_IFNAME": Effect.HOST,
    "LC_ALL": Effect.HOST,
    "HF_TOKEN": Effect.SECRET,
    "OPENAI_API_KEY": Effect.SECRET,
    "AWS_SECRET_ACCESS_KEY": Effect.SECRET,
    "VLLM_API_KEY": Effect.SECRET,
    "DB_PASSWORD": Effect.SECRET,
    "TORCH_LOGS": Effect.NOTHING,
    "TORCHINDUCTOR_VEC_ISA_OK": Effect.NOTHING,
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": Effect.NOTHING,
    "TORCH_COMPILE_DISABLE": Effect.NOTHING,
    "TRITON_INTERPRET": Effect.NOTHING,
    "NCCL_DEBUG": Effect.NOTHING,
    "VLLM_ATTENTION_BACKEND": Effect.NOTHING,
    "TORCHINDUCTOR_FOO": None,
    "EDITOR": None,
    "": None,
}


@pytest.mark.parametrize(("name", "effect"), EFFECTS.items(), ids=str)
def test_what_a_variable_can_change(name, effect):
    """One example of each kind. A secret's name counts before an owner's pattern, an exact name before both."""
    row = lookup(name)
    assert (row.effect if row is not None else None) is effect


def test_each_row_says_whose_it_is_and_why():
    """The table has each name once, with an owner and a reason of several words."""
    assert [name for name, count in Counter(v.name for v in TABLE).items() if count > 1] == []
    for row in TABLE:
        assert row.owner, row.name
        assert len(row.reason.split()) > 2, row.name
        assert row.name.strip("*"), row.name


def test_no_variable_that_enters_a_key_is_named_like_a_secret():
    """A value that is stored must not be a credential: no row with an effect on code or capture is a pattern of one."""
    for row in TABLE:
        if row.effect in (Effect.CODE, Effect.CAPTURE):
            assert not is_secret(row.name)
            assert "*" not in row.name or row.effect is Effect.CAPTURE


def test_the_maps_hold_what_is_set_in_order_of_name():
    """Only variables that are set, only those of the effect, sorted whatever order the environment has."""
    environ = {
        "TRITON_F32_DEFAULT": "ieee",
        "NCCL_ALGO": "Ring",
        "ATEN_CPU_CAPABILITY": "default",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HOME": "/h",
        "TORCHINDUCTOR_FOO": "1",
        "MY_TOKEN": "t",
    }
    for order in (environ, dict(reversed(environ.items()))):
        code, capture = code_environment(order), capture_environment(order)
        assert list(code.items()) == [
            ("ATEN_CPU_CAPABILITY", "default"),
            ("TRITON_F32_DEFAULT", "ieee"),
        ]
        assert list(capture.items()) == [
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
            ("NCCL_ALGO", "Ring"),
        ]
        assert unknown_variables(order) == ["TORCHINDUCTOR_FOO"]
    assert code_environment({}) == {}


@pytest.mark.parametrize(
    "value", ["redis://me:pass@host:1/0", "https://user:pass@proxy", "x http://:pass@h y"]
)
def test_a_password_in_an_address_is_hidden(value):
    """A location may carry a credential, so values of that form are not shown."""
    assert shown({"CACHE_URL": value}) == {"CACHE_URL": HIDDEN}
    assert shown({"CACHE_URL": "redis://host:1/0"}) == {"CACHE_URL": "redis://host:1/0"}


SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "GRAPHSPEC_TOKEN", "TORCH_TOKEN")


def test_secrets_are_in_no_output(tiny_spec, monkeypatch, capsys):
    """Every map, key, environment of a child and report is searched for the values of credentials."""
    from graphspec.cli import main

    for name in SECRETS:
        monkeypatch.setenv(name, f"leaked-{name}")
    environ = os.environ
    compiler = Compiler((), {}, "cpu")
    outputs = [
        code_environment(environ),
        capture_environment(environ),
        unknown_variables(environ),
        shown(environ),
        toolchain(tiny_spec.device),
        compiler._environment(),
        *(k.key.text for k in keyed_units(program(tiny_spec).units(), tiny_spec)),
    ]
    assert "leaked" not in repr(outputs)
    assert all(shown(environ)[name] == HIDDEN for name in SECRETS)
    with pytest.raises(KeyFactorError) as caught:
        declared_environment(["HF_TOKEN", "RANK"])
    assert "leaked" not in str(caught.value)
    assert [p.where for p in caught.value.problems] == ["environment variable HF_TOKEN"]
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    printed = capsys.readouterr()
    assert "leaked" not in printed.out + printed.err


def test_declared_variables_are_values_or_none(monkeypatch):
    """A unit's own variables: sorted, and one that is not set is told from one that is empty."""
    monkeypatch.setenv("B_SWITCH", "")
    monkeypatch.delenv("A_SWITCH", raising=False)
    assert list(declared_environment(("B_SWITCH", "A_SWITCH")).items()) == [
        ("A_SWITCH", None),
        ("B_SWITCH", ""),
    ]


def test_the_compiler_inherits_what_is_in_the_key_and_what_it_needs(monkeypatch):
    """A listed variable is passed on, an unlisted one is not, and no cache folder of the caller is used."""
    for name, value in {
        "TORCHINDUCTOR_NAN_ASSERTS": "1",
        "TORCHINDUCTOR_FOO": "1",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "0",
        "TORCHINDUCTOR_CACHE_DIR": "/mine",
        "TRITON_CACHE_DIR": "/mine",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "7",
        "CXX": "clang++",
        "HOME": "/mine",
    }.items():
        monkeypatch.setenv(name, value)
    environment = Compiler((), {}, "cpu")._environment()
    assert environment["TORCHINDUCTOR_NAN_ASSERTS"] == "1"
    assert environment["HOME"] == "/mine"
    left_out = {"TORCHINDUCTOR_FOO", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS", "NCCL_ALGO"}
    assert not environment.keys() & (left_out | {"OMP_NUM_THREADS", "CXX"})
    assert "/mine" not in (environment["TORCHINDUCTOR_CACHE_DIR"], environment["TRITON_CACHE_DIR"])


def test_what_the_compiler_needs_is_known_to_change_no_code():
    """Each variable that it inherits without being in the key is in the table, as a place or a host's affair."""
    for name in _KEPT_VARIABLES:
        row = lookup(name)
        assert row is not None, name
        assert row.effect in (Effect.LOCATION, Effect.HOST), name


def keys(spec):
    return [keyed.key for keyed in keyed_units(program(spec).units(), spec)]


def test_B06_a_declared_variable_is_another_key(tiny_spec, monkeypatch):
    """A variable that a unit declares moves that unit's key, set to another value or not set at all."""
    unit = attrs.evolve(program(tiny_spec).units()[0], environment=("LAYER_SPLIT",))
    seen = set()
    for value in (None, "", "8,8", "9,7"):
        if value is not None:
            monkeypatch.setenv("LAYER_SPLIT", value)
        seen.add(keyed_units([unit], tiny_spec)[0].key)
    assert len(seen) == 4


def names_read_in(folder, pattern):
    """Every variable that Python sources read, with the file."""
    for path in sorted(Path(folder).rglob(pattern)):
        yield from ((name, path) for name in _names_read(ast.parse(path.read_text())))


def _names_read(tree):
    constants = {
        t.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for t in node.targets
        if isinstance(t, ast.Name)
    }
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if re.match(r"(os\.)?(environ(\.get|\.pop|\.setdefault|\[)|getenv\()", text):
            found = (
                node.args[0]
                if isinstance(node, ast.Call) and node.args
                else getattr(node, "slice", None)
            )
            if isinstance(found, ast.Constant):
                yield found.value
            elif isinstance(found, ast.Name) and found.id in constants:
                yield constants[found.id]


def test_B06_no_variable_is_read_that_is_in_no_row():
    """Our own code reads only variables that the table says something about."""
    root = Path(graphspec.__file__).parent
    folders = [root, *(root.parent / name for name in ("cache", "capture", "kernels"))]
    found = {n: path for folder in folders for n, path in names_read_in(folder, "*.py")}
    assert "GRAPHSPEC_CACHE_DIR" in found
    assert {n: str(path) for n, path in found.items() if lookup(n) is None} == {}


@pytest.mark.skipif(
    not torch.__version__.startswith(REVIEWED), reason=f"the table was compared with {REVIEWED}x"
)
def test_the_variables_of_torch_and_triton_are_all_in_the_table():
    """What the installed torch and Triton read while they trace and compile has a row, so a new one is noticed."""
    root = Path(torch.__file__).parent
    sources = [
        *(root / "_inductor").rglob("*.py"),
        *(root / n for n in ("_dynamo/config.py", "_functorch/config.py", "compiler/config.py")),
        root / "fx/experimental/_config.py",
        root.parent / "triton/knobs.py",
    ]
    pattern = re.compile(
        r"""(?:environ(?:\.get|\.pop)?\s*[\[(]|getenv\(|tristate_env\(|env_name_\w+=|env_\w+\()\s*["']([A-Z_0-9]+)["']"""
    )
    read = {n for path in sources if path.is_file() for n in pattern.findall(path.read_text())}
    assert len(read) > 250
    tests_only = {n for n in read if n.startswith(("INDUCTOR_TEST", "TEST_"))}
    assert sorted(n for n in read - tests_only if lookup(n) is None) == []
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" in read


def test_prefixes_cover_the_rows_that_change_code():
    """A new variable beside one that matters is reported as unknown, not passed over."""
    outside = {
        r.name for r in TABLE if r.effect is Effect.CODE and not r.name.startswith(KNOWN_PREFIXES)
    }
    assert outside == {
        "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
        "ATEN_CPU_CAPABILITY",
        "CUTEDSL_ENABLE_AUTOTUNING",
        "DISABLE_LLVM_OPT",
        "DISABLE_MMA_V3",
        "DISABLE_MMA_V5",
        "DISABLE_PTXAS_OPT",
        "ENABLE_PERSISTENT_TMA_MATMUL",
        "ENABLE_TEMPLATE_TMA_STORE",
        "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE",
        "FAKE_ALLOW_META",
        "USE_IR_LOC",
    }


def test_B07_a_switch_on_and_off_again_is_a_miss_a_miss_and_a_hit(tiny_spec, monkeypatch, tmp_path):
    """A variable that changes code: the third start finds what the first one stored."""
    from graphspec.cache.entry import Entry

    store, outcomes = DiskStore(str(tmp_path)), []
    for value in ("0", "1", "0"):
        monkeypatch.setenv("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", value)
        key = keys(tiny_spec)[0]
        lookup_of = store.get(key)
        outcomes.append(lookup_of.outcome)
        if lookup_of.entry is None:
            store.put(Entry(key=key, metadata=METADATA, payload=value.encode()))
    assert outcomes == [Outcome.MISS, Outcome.MISS, Outcome.HIT]
    assert bytes(lookup_of.entry.payload) == b"0"
    held = decode(key.text)["toolchain"]["environment"]
    assert held == {"TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "0"}


PLACEMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "CUDA_VISIBLE_DEVICES": "5",
    "HIP_VISIBLE_DEVICES": "5",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "SLURM_PROCID": "3",
    "RAY_JOB_ID": "77",
    "POD_NAME": "pod-7",
    "HOSTNAME": "node7",
    "USER": "someone",
}


def test_B15_placement_is_in_no_key(tiny_spec, monkeypatch):
    """Ranks, ports, job numbers and visible devices of a launcher leave the keys as they are."""
    before = keys(tiny_spec)
    for name, value in PLACEMENT.items():
        monkeypatch.setenv(name, value)
    assert keys(tiny_spec) == before


def test_B16_where_things_lie_is_in_no_key(tiny_spec, monkeypatch, tmp_path):
    """Home, caches and toolkit at another place leave the keys as they are, and no path is in one."""
    before = keys(tiny_spec)
    for name in (
        *("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "GRAPHSPEC_CACHE_DIR", "HF_HOME"),
        *(
            "TORCHINDUCTOR_CACHE_DIR",
            "TRITON_CACHE_DIR",
            "TRITON_HOME",
            "CUDA_HOME",
            "CUDA_CACHE_PATH",
        ),
    ):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert keys(tiny_spec) == before
    for key in before:
        assert not re.search(rb"s\d+:/", key.text), "a text that begins like a path"
        assert os.sep + "site-packages" not in json.dumps(decode(key.text), default=str)
