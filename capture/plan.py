"""`CapturePlan`: the graphs that a schedule can reach, and no other, worked out before any device is touched."""

from collections.abc import Mapping

import attrs

from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.ladder import request_ladder
from graphspec.config.schedule import KSchedule
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class CapturePlan:
    """What to capture, largest first, with the schedule it serves.

    `buckets` has the captured sizes of each depth, ascending.
    """

    schedule: KSchedule
    buckets: Mapping[int, tuple[int, ...]]

    @property
    def keys(self) -> tuple[CaptureKey, ...]:
        """Every planned graph, most tokens first: the largest sets the size of the shared pool."""
        planned = [
            CaptureKey(Phase.TARGET_VERIFY, k, size)
            for k, sizes in self.buckets.items()
            for size in sizes
        ]
        return tuple(sorted(planned, key=lambda key: (-key.tokens, -key.k)))

    def depth_to_verify(self, requests: int, proposed_k: int) -> int:
        """The depth at which a step of `requests` requests is verified when its drafts were proposed at `proposed_k`.

        The depth they were proposed at, while its buckets hold the batch. A batch that grew past them takes the depth
        of its new size: its drafts are trimmed, or padded with drafts that are always rejected.
        """
        sizes = self.buckets.get(proposed_k, ())
        if sizes and requests <= sizes[-1]:
            return proposed_k
        return self.schedule.k_for(requests)

    def key_for(self, requests: int, proposed_k: int) -> CaptureKey | None:
        """The smallest planned graph for such a step, or None when the plan has none."""
        k = self.depth_to_verify(requests, proposed_k)
        for size in self.buckets.get(k, ()):
            if size >= requests:
                return CaptureKey(Phase.TARGET_VERIFY, k, size)
        return None

    def reachable(self) -> frozenset[CaptureKey]:
        """Every graph that some pair of consecutive steps uses: any batch size after a step of any other."""
        found = {
            self.key_for(requests, k)
            for requests in range(1, self.schedule.max_num_seqs + 1)
            for k in self.schedule.depths
        }
        return frozenset(key for key in found if key is not None)

    def fallthrough(self) -> tuple[int, ...]:
        """Batch sizes that steady decoding would run without a full graph."""
        return tuple(
            requests
            for requests in range(1, self.schedule.max_num_seqs + 1)
            if self.key_for(requests, self.schedule.k_for(requests)) is None
        )


def plan_capture(spec: EngineSpec) -> CapturePlan:
    """The plan for a spec: for each tier of its schedule, the ladder within the tier and the tier's last size.

    Without full graphs for decode steps the plan is empty and every size falls through, as the mode's reasons say.
    """
    schedule = spec.schedule
    sizes: dict[int, set[int]] = {}
    if spec.mode.granted.decode_is_full:
        for first, last, k in schedule.tiers:
            sizes.setdefault(k, set()).update(request_ladder(first, last))
    return CapturePlan(
        schedule=schedule,
        buckets={k: tuple(sorted(s)) for k, s in sorted(sizes.items(), reverse=True)},
    )
