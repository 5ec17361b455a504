"""Static buffers are written in place by named operations; addresses are compared by digest, and by name on a mismatch."""

import pytest
import torch

from graphspec.capture.addresses import Addresses
from graphspec.capture.buffers import Padding, StaticBuffer
from graphspec.errors import CaptureError

PADDING = Padding(harmless=0, poison=77, unread=-5)


def buffer(debug=False, rows=5):
    return StaticBuffer("ids", torch.full((rows,), 3), PADDING, debug=debug)


def test_operations_write_in_place():
    """The address is that of the allocation, whatever is done."""
    b = buffer(debug=True)
    before = b.tensor.data_ptr()
    b.copy_in([1, 2])
    b.copy_in(torch.tensor([9]), at=2)
    b.pad(3, 4)
    b.leave(4)
    assert b.tensor.tolist() == [1, 2, 9, 77, -5]
    assert b.tensor.data_ptr() == before


def test_padding_is_harmless_and_the_rest_is_left_without_debug():
    """What lies behind the graph's rows is not read, so nothing is spent on it."""
    b = buffer()
    b.copy_in([1])
    b.pad(1, 3)
    b.leave(3)
    assert b.tensor.tolist() == [1, 0, 0, 3, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.copy_in([0] * 6),
        lambda b: b.copy_in([0, 0], at=4),
        lambda b: b.copy_in([0], at=-1),
        lambda b: b.pad(3, 6),
        lambda b: b.pad(4, 3),
        lambda b: b.leave(6),
    ],
)
def test_rows_outside_the_buffer_are_refused(call):
    """Slices would take fewer rows without a word."""
    b = buffer()
    with pytest.raises(CaptureError, match=r"static buffer ids: found rows .*within its 5"):
        call(b)
    assert b.tensor.tolist() == [3] * 5


def test_addresses_hold_until_a_tensor_moves():
    """Content and order are nothing to them; a new tensor, a lost one and an exchange of two are."""
    a, b = torch.zeros(4), torch.zeros(4)
    before = Addresses.of({"a": a, "b": b})
    a.fill_(1)
    assert before.hold({"a": a, "b": b})
    assert before.hold({"b": b, "a": a})
    for changed in ({"a": a, "b": b.clone()}, {"a": a}, {"a": b, "b": a}, {"a": a, "b": b, "c": a}):
        assert not before.hold(changed)
        moved = before.moved(changed, now="now", then="then", hint="copy_")
        assert [p.where.split()[-1] for p in moved] == sorted(
            n for n in {"a", "b", *changed} if changed.get(n) is not {"a": a, "b": b}.get(n)
        )
