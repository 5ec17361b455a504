"""Which implementation a device gets, and that every other one has a reason."""

import importlib.util

import pytest
import torch

from graphspec.errors import KernelError
from graphspec.kernels import registry
from graphspec.kernels.registry import Implementation, choose, kernel_names, register_kernel
from graphspec.kernels.verify import verify_drafts
from graphspec.kernels.verify_values import Sampling


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    monkeypatch.setattr(registry, "_registered", [])


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""
    real = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n, *rest: None if n in names else real(n, *rest)
        )

    return hide


def takes_the_last(job):
    """A verification of a user's own."""
    return job.vocab - 1


def mine(**changes):
    facts = {
        "kernel": "ngram",
        "name": "mine",
        "home": "graphspec.kernels.ngram:propose_ngram",
        "devices": ("cpu",),
    }
    return Implementation(**{**facts, **changes})


@pytest.mark.parametrize("device", ["cpu", "cuda", "hip", "tpu"])
@pytest.mark.parametrize("kernel", kernel_names())
def test_every_implementation_is_taken_behind_or_rejected(kernel, device):
    """And none is two of these."""
    choice = choose(kernel, device=device)
    taken = [choice.taken.name] if choice.taken else []
    listed = [*taken, *choice.behind, *choice.rejected]
    assert sorted(listed) == sorted(i.name for i in registry.BUILT_IN if i.kernel == kernel)
    assert all(choice.rejected.values())


def test_a_host_gets_the_compiled_path_and_the_reasons_name_device_and_package(without):
    """What runs on a GPU says so; a package that lacks is named with the extra that has it."""
    choice = choose("ngram")
    assert choice.implementation.name == "index"
    assert choice.rejected == {"triton": "runs on cuda or hip, not on cpu"}
    assert choice.behind == ("scan",)
    without("numba")
    choice = choose("ngram")
    assert choice.implementation.name == "scan"
    assert "numba is not installed (pip install 'graphspec-engine[ngram]')" in choice.explain()


def test_a_gpu_gets_triton(without):
    """Unless Triton is missing: then the rows of a step still come from plain torch, and n-grams from nowhere."""
    assert choose("batch", device="cuda").implementation.name == "triton"
    without("triton")
    assert choose("batch", device="cuda").implementation.name == "reference"
    with pytest.raises(KernelError, match="triton is not installed"):
        _ = choose("ngram", device="cuda").implementation


def test_a_type_of_logits_that_nothing_takes_is_a_reason():
    """For all of a kernel's implementations but the reference."""
    choice = choose("verify", dtype="float64")
    assert choice.rejected["cpu"] == "takes float32, bfloat16, float16, not float64"
    assert choice.implementation.name == "reference"


def test_verification_runs_what_the_registry_chooses(without):
    """`verify_drafts` asks the registry: numba's path, the reference without numba, and a user's own before both."""
    logits, none = torch.zeros(1, 3), torch.zeros(0, dtype=torch.int64)
    arguments = (logits, none, torch.tensor([0, 0]))
    sampling = Sampling.of(temperature=[0.0])
    assert choose("verify").implementation.name == "cpu"
    without("numba")
    assert choose("verify").implementation.name == "reference"
    assert verify_drafts(*arguments, sampling=sampling).tokens.tolist() == [[0]]
    register_kernel(mine(kernel="verify", home=f"{__name__}:takes_the_last"))
    assert verify_drafts(*arguments, sampling=sampling) == 2


def test_a_registered_implementation_comes_first():
    """The last registered before the others; repeating it does nothing."""
    register_kernel(mine())
    register_kernel(mine(name="newer"))
    register_kernel(mine())
    choice = choose("ngram")
    assert choice.implementation.name == "newer"
    assert choice.behind == ("mine", "index", "scan")
    assert choice.implementation.load()([1, 2, 1], 1, 1, 1, 9) == [2]


def test_a_new_kernel_can_be_registered():
    """Its name is then known."""
    register_kernel(mine(kernel="sort"))
    assert "sort" in kernel_names()
    assert choose("sort").implementation.name == "mine"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"name": "index"}, "taken"),
        ({"home": "graphspec.kernels.ngram"}, "module:function"),
        ({"home": ":f"}, "module:function"),
    ],
)
def test_a_registration_that_cannot_work_is_refused(changes, found):
    """A name that is taken, a place that is none."""
    with pytest.raises(KernelError, match=found):
        register_kernel(mine(**changes))


def test_a_module_that_is_not_there_is_a_reason_and_no_crash():
    """The next implementation is taken."""
    register_kernel(mine(home="no_such_package.kernels:f"))
    choice = choose("ngram")
    assert choice.rejected["mine"] == "there is no module no_such_package.kernels"
    assert choice.implementation.name == "index"


def test_an_unknown_kernel_is_named_with_the_nearest():
    """And all that there are."""
    with pytest.raises(KernelError, match="did you mean 'verify'"):
        choose("verfy")


@pytest.mark.parametrize("implementation", registry.BUILT_IN, ids=lambda i: f"{i.kernel}-{i.name}")
def test_every_built_in_home_has_its_function(implementation):
    """Read, not loaded: some of them compile when they are imported."""
    module, _, name = implementation.home.partition(":")
    with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
        text = file.read()
    assert f"\ndef {name}(" in text or f"\nclass {name}:" in text
