"""F33: the same keys in every process: other seeds, folders, users, locales, hosts, ranks, orders and ways to start.

One process changes several things at once: equal keys then mean that none of them matters.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphspec.keys.compare import compare
from graphspec.keys.encoding import decode
from support.specs import config_folder, plain_config
from support.speculative import CASES, engine

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "key_process.py"
TABLE = {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]}
CONFIGS = {
    "plain": engine(None, compilation={"cudagraph_mode": "FULL"}),
    "ngram": engine({**CASES["ngram"].section, **TABLE}, device={"isa": "x86-64-v3"}),
    **{name: engine(CASES[name].section, CASES[name].target) for name in ("mtp", "dflash")},
    "eagle3": engine(
        CASES["eagle3"].section,
        model={"hf_overrides": {"rope_theta": 7e5, "hidden_act": "gelu"}},
        lora={"max_loras": 2},
        watermark={"key": 7, "algorithm": "dual_key_gumbel"},
        kernels={"attention_backend": "flash_attn", "moe_backend": "triton"},
    ),
    "custom_class": engine(
        {
            **CASES["custom_class"].section,
            "speculator_options": {
                "é": [1, 2.5, None],
                "I\u0131": {"\u00df": "\u0130", "b": -0.0},
                "a": True,
            },
        }
    ),
    "dspark": engine(
        CASES["dspark"].section, CASES["dspark"].target, parallel={"tensor_parallel_size": 2}
    ),
}
RANKS = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "NODE_RANK": "2",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29511",
    "PORT": "8042",
    "POD_NAME": "engine-3",
    "POD_IP": "10.1.2.3",
    "HOSTNAME": "engine-3.pods",
    "OMPI_COMM_WORLD_RANK": "5",
    "SLURM_PROCID": "5",
    "CUDA_VISIBLE_DEVICES": "3",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "VLLM_PORT": "8001",
    "GRAPHSPEC_CACHE_DIR": "/nowhere/cache",
}
PLACES = {
    "HOME": "/nowhere/home",
    "USER": "somebody",
    "LOGNAME": "somebody",
    "XDG_CACHE_HOME": "/nowhere/cache",
    "XDG_CONFIG_HOME": "/nowhere/config",
    "TMPDIR": "/tmp",
    "HF_HOME": "/nowhere/hf",
    "TORCHINDUCTOR_CACHE_DIR": "/nowhere/inductor",
    "TRITON_CACHE_DIR": "/nowhere/triton",
    "VIRTUAL_ENV": "/nowhere/venv",
    "PWD": "/nowhere",
    "OLDPWD": "/nowhere/else",
}


def keys_in(*changes, cwd=ROOT, options=(), configs=CONFIGS, units=(), **variables):
    """What another process says of the keys. It has these variables and little else."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, *options, str(SCRIPT)],
        input=json.dumps({"configs": configs, "changes": changes, "units": list(units)}),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def keys():
    """The keys in a process that nothing was changed for."""
    return keys_in(PYTHONHASHSEED="0")


def assert_same(keys, others):
    """Every hash is the same; where one is not, the factor that differs."""
    for name, by_stage in keys.items():
        for stage, (digest, text) in by_stage.items():
            other_digest, other_text = others[name][stage]
            told = "\n".join(
                map(str, compare(decode(bytes.fromhex(text)), decode(bytes.fromhex(other_text))))
            )
            assert (digest, told) == (other_digest, ""), f"{name}, {stage}:\n{told}"


def test_F33_each_config_has_two_keys_of_its_own(keys):
    """The matrix compares something: no two of its keys are one."""
    found = {digest for by_stage in keys.values() for digest, _ in by_stage.values()}
    assert len(found) == 2 * len(CONFIGS)


def test_F33_hash_seed_and_orders(keys):
    """PYTHONHASHSEED, the order of mappings in the data, and the order of imports."""
    order = ("another_import_order", "another_dict_order")
    assert_same(keys, keys_in(*order, PYTHONHASHSEED="1"))
    assert_same(keys, keys_in(*order, PYTHONHASHSEED="4294967295"))


def test_F33_folders_home_and_umask(keys, tmp_path):
    """Working folder, home, cache and temporary folders, who is said to be logged in, and what files may be made for whom."""
    variables = {
        **PLACES,
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # no bytecode that nobody may read is left
    assert_same(keys, keys_in("another_umask", cwd=tmp_path, **variables))


def test_F33_locale_time_zone_and_encoding(keys):
    """C, UTF-8, Turkish with its dotless i, and a time zone with quarter hours."""
    zone = {"TZ": "Asia/Kathmandu"}
    assert_same(keys, keys_in("another_locale", LC_ALL="C", PYTHONUTF8="0", **zone))
    assert_same(keys, keys_in("another_locale", LC_ALL="C.UTF-8", PYTHONUTF8="1", TZ="UTC"))
    turkish = {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "LANGUAGE": "tr"}
    assert_same(keys, keys_in("another_locale", **turkish, **zone))


def test_F33_user_and_host(keys):
    """A user without a name, on a host of another name."""
    assert_same(keys, keys_in("another_host_name", "another_user", HOSTNAME="another-host"))


def test_F33_ranks_ports_and_placement(keys):
    """What launchers, schedulers and container platforms put into the environment."""
    assert_same(keys, keys_in(**RANKS))
    assert_same(keys, keys_in(**{name: f"{value}0" for name, value in RANKS.items()}))


def test_F33_optimised_python_and_other_settings(keys):
    """Without assertions, without docstrings, isolated from the site, with other limits."""
    settings = "other_settings_of_python"
    assert_same(keys, keys_in(settings, options=("-O",), PYTHONDONTWRITEBYTECODE="1"))
    assert_same(keys, keys_in(settings, options=("-OO", "-X", "utf8"), PYTHONHASHSEED="2"))


@pytest.mark.slow
def test_F33_torch_imported_and_the_keys_of_units(keys, tmp_path):
    """With torch loaded and set up otherwise the keys are the same; so are those of units in another surrounding."""
    config = plain_config(config_folder(tmp_path / "model"))
    configs = {**CONFIGS, "tiny": config}
    plain = keys_in(configs=configs, units=["tiny"], PYTHONHASHSEED="0")
    moved = {**PLACES, **RANKS, "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
    other = keys_in(
        "torch_first",
        "another_dict_order",
        "another_host_name",
        configs=configs,
        units=["tiny"],
        cwd=tmp_path,
        PYTHONHASHSEED="3",
        **moved,
    )
    assert len({digest for digest, _ in plain["tiny"].values()}) == len(plain["tiny"]) > 4
    assert_same(plain, other)
    del plain["tiny"]
    assert plain == keys
