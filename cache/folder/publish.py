"""New files that appear whole: written aside, given their name at once, synced where they must survive power loss."""

import errno
import os

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP)


def write_new(path: str, data: bytes, *, durable: bool = False) -> None:
    """Writes a file that must not exist yet, readable by its owner only. `durable`: its content survives power loss."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: str, path: str) -> bool:
    """Gives the complete file its name at once; False where the name is taken. The first writer wins, lock or no lock.

    The file may keep its old name as well.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links (FAT, FUSE, some network mounts) a rename is as atomic. Of two writers that look at the same
        # moment the last one wins.
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    return True


def sync_file(path: str) -> None:
    """Returns when the content of an existing file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems sync no folder: they have nothing more to give.
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_folder(path: str) -> bool:
    """Makes a folder and those above it, for this user only. False where it is there."""
    try:
        return _made(path)
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        return _made(path)


def _made(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


Names = set[tuple[str, int, int]]
"""Folders (path, device, inode) whose own names have been on the disk with all above them."""


def sync_names(path: str, root: str, known: Names) -> None:
    """Returns when the name of a file below `root`, and of each folder on the way to it, is on the disk.

    A folder that was just made is itself only a name in the one above it, up to the root of the file system. What was
    synced once is kept in `known` and not synced again: even to sync what has not changed costs a flush of the disk.
    """
    folder = os.path.dirname(path)
    sync_file(folder)
    synced: Names = set()
    while (above := os.path.dirname(folder)) != folder:
        facts = os.stat(folder)
        identity = folder, facts.st_dev, facts.st_ino
        if identity in known or os.stat(above).st_dev != facts.st_dev:
            break
        try:
            sync_file(above)
        except PermissionError:
            # A folder above the root that may not even be listed was not made by this user.
            if above.startswith(root):
                raise
        synced.add(identity)
        folder = above
    known |= synced


def why(error: OSError, root: str) -> str:
    """What a failed write means for the folder `root`, in a sentence."""
    known = {
        errno.ENOSPC: "no space is left on the disk",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the folder is mounted read-only",
        errno.EACCES: "permission is denied",
        errno.EPERM: "permission is denied",
        errno.ENOTDIR: "a file lies where a folder should be",
        errno.EEXIST: "a file lies where a folder should be",
        errno.ENOENT: "a folder or file of it is not there",
        errno.EXDEV: "its folders tmp and entries lie on different file systems",
    }
    text = known.get(error.errno or 0, error.strerror or str(error))
    if error.errno == errno.ENOSPC and _lacks_inodes(root):
        text = "no inode is left on the disk: it holds too many files"
    return f"{root}: {text}"


_INODES_OF_A_PUT = 3
"""A folder, a file, and on some file systems a second name of it."""


def _lacks_inodes(root: str) -> bool:
    try:
        facts = os.statvfs(root)
    except OSError:
        return False
    # File systems without a fixed number of inodes give zero for both.
    return facts.f_files > 0 and facts.f_favail < _INODES_OF_A_PUT
