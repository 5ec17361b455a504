"""`Addresses`: where the static tensors lay at capture, and a digest that each replay compares in microseconds."""

from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch

from graphspec.errors import Problem


def digest_of(tensors: Iterable[torch.Tensor]) -> int:
    """64 bits over the addresses, in order. It is compared within one process only.

    Python's hash of a tuple, which is an xxHash: packing 200 addresses for a library's hash took twice as long.
    """
    return hash(tuple(map(torch.Tensor.data_ptr, tensors)))


@attrs.frozen(kw_only=True)
class Addresses:
    """The address of each static tensor, by name, and the digest of all of them."""

    by_name: Mapping[str, int]
    digest: int

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> "Addresses":
        """The present addresses of these tensors."""
        return cls(
            by_name={name: tensor.data_ptr() for name, tensor in tensors.items()},
            digest=digest_of(tensors.values()),
        )

    def hold(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """True when every tensor is where it was. Only where digests differ are the addresses compared by name."""
        if digest_of(tensors.values()) == self.digest:
            return True
        # The same tensors in another order are no change.
        return {name: tensor.data_ptr() for name, tensor in tensors.items()} == self.by_name

    def moved(
        self, tensors: Mapping[str, torch.Tensor], *, now: str, then: str, hint: str
    ) -> Sequence[Problem]:
        """One problem for each tensor that is elsewhere, is gone or is new, by name."""
        present = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        return [
            Problem(
                where=f"static buffer {name}",
                found=f"address {present.get(name, 0):#x} {now}",
                wanted=f"address {self.by_name.get(name, 0):#x} {then}",
                hint=hint,
            )
            for name in sorted(present.keys() | self.by_name.keys())
            if present.get(name) != self.by_name.get(name)
        ]
