"""What is said of a compiled kernel is what its binary says, and a library's kernels are found in it."""

import hashlib

import pytest

from graphspec.cubin import architecture_of, cubins_in, read_cubin
from graphspec.errors import EnvironmentProblem

small_kernel = pytest.importorskip("support.small_kernel")


@pytest.mark.parametrize("number", [80, 90, 100])
def test_a_cubin_says_for_which_gpu_it_is_and_what_it_takes(number):
    """Triton's own metadata name the same symbol; the architecture is read of both layouts of the header."""
    kernel = small_kernel.compiled(number)
    read = read_cubin(small_kernel.cubin(number))
    assert read.symbol == kernel.metadata.name
    assert read.architecture == f"sm_{number}"
    assert 0 < read.registers <= 255
    assert read.spills == 0
    assert read.digest == hashlib.sha256(small_kernel.cubin(number)).hexdigest()


@pytest.mark.parametrize("spoil", [lambda c: c[:200], lambda c: b"", lambda c: b"#!/bin/sh\n" + c])
def test_what_is_no_cubin_is_an_error_with_the_tools_words(spoil):
    """Never the resources of nothing."""
    with pytest.raises(EnvironmentProblem, match="cuobjdump"):
        read_cubin(spoil(small_kernel.cubin(90)))


def test_the_cubins_of_a_library_are_found_to_the_byte():
    """Between other bytes, in order, at any offset; a library is itself such a file, of another machine."""
    one, other = small_kernel.cubin(90), small_kernel.cubin(80)
    library = b"\x7fELF\x02\x01" + bytes(90) + one + b"\x7fELF\x02\x01 of text " + other + b"rest"
    assert list(cubins_in(library)) == [one, other]
    assert list(cubins_in(memoryview(library))) == [one, other]


def test_a_cubin_that_is_cut_off_is_not_found():
    """Its header promises more bytes than there are."""
    one = small_kernel.cubin(90)
    assert list(cubins_in(b"library" + one[:-1])) == []
    assert list(cubins_in(b"")) == []
    assert architecture_of(one[:40]) == architecture_of(b"") == ""
