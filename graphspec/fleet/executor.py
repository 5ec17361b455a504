"""`Executor`: where tasks run. Local processes and a Ray cluster are two of them."""

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

import attrs

from graphspec.fleet.task import Done, Resources, Task


@attrs.frozen(kw_only=True)
class Ended:
    """One task that is over. `done` is what its worker answered; None for a worker that is `lost`, with the reason."""

    task: Task
    done: Done | None = None
    lost: str = ""


class Executor(Protocol):
    """Runs tasks, several at once. Entering it starts the workers, leaving it ends them.

    The order of submission is the order of start, as far as resources allow. A lost worker ends its task, which may be
    submitted again: an executor starts nothing twice by itself.
    """

    name: str
    """Of the command line: local, ray."""
    slots: int
    """Tasks of one CPU that run at once."""

    def why_not(self, resources: Resources) -> str:
        """Why a task of these resources could never start here, in a sentence; an empty text where it can."""
        ...

    def submit(self, task: Task) -> None:
        """Puts a task behind those that wait."""
        ...

    def as_completed(self) -> Iterator[Ended]:
        """Each submitted task as it ends. More may be submitted meanwhile."""
        ...

    def cancel(self) -> None:
        """Ends what runs, at once, and forgets what waits: none of it is yielded any more."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
