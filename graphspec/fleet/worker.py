"""The process of a local worker: reads tasks from standard input, writes what became of them to standard output.

Each message is a length of 8 bytes, little-endian, and a pickle. Both ends are one program of one user, started by one
command: nobody else can write to these pipes.
"""

import os
import pickle
import struct
from typing import IO, Any

from graphspec.cache.compiling.worker import die_with_parent

_LENGTH = struct.Struct("<Q")


def pack(content: Any) -> bytes:
    """One message. Raises what pickle raises for what it cannot hold."""
    data = pickle.dumps(content)
    return _LENGTH.pack(len(data)) + data


def send(pipe: IO[bytes], message: bytes) -> None:
    """Writes one message. Raises `OSError` when nobody reads."""
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message. Raises `EOFError` when the other side is gone, also in the midst of one."""
    prefix = pipe.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(prefix)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Performs tasks until standard input ends."""
    die_with_parent()
    from graphspec.fleet.perform import Compilers, perform

    # Programs and compilers print; the channel of answers must hold answers only.
    answers, tasks = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with Compilers() as compilers:
        while True:
            try:
                task = receive(tasks)
            except EOFError:
                return
            send(answers, pack(perform(task, compilers)))


if __name__ == "__main__":
    main()
