"""`open_regular`: a file that somebody named, without the surprises that a name can hold."""

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """The file at `path`, open for reading bytes. Raises OSError, without waiting, for a folder, a pipe or a device."""
    # A pipe without a writer would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
