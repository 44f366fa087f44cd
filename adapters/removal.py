"""Remove a directory with all that is in it, however deep it is and whatever permissions it was left with."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path | str) -> None:
    """
    On return nothing stands at the path. Links are not followed; what is absent is no fault.

    Directories inside directories are moved up before they are emptied, so that two open ones are enough and no path
    is ever long.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    with suppress(PermissionError):
        os.chmod(path, 0o700)
    top = os.open(path, OPENED)
    try:
        count = 0
        while names := os.listdir(top):
            for name in names:
                count = _remove(top, name, count)
    finally:
        os.close(top)
    os.rmdir(path)


def _remove(top: int, name: str, count: int) -> int:
    """Remove an entry of the top directory; the directories in it are moved up, under names that count on."""
    try:
        os.unlink(name, dir_fd=top)
        return count
    except FileNotFoundError:
        return count
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            raise
    _open_up(top, name)
    inner = os.open(name, OPENED, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except (IsADirectoryError, PermissionError):
                _open_up(inner, entry)
                # No name of an agent's is this one by chance: it would be met and removed like every other.
                while True:
                    count += 1
                    try:
                        os.rename(entry, f".steersman-removed-{count}", src_dir_fd=inner, dst_dir_fd=top)
                        break
                    except (FileExistsError, NotADirectoryError, IsADirectoryError):
                        continue
                    except OSError as error:
                        if error.errno != errno.ENOTEMPTY:
                            raise
    finally:
        os.close(inner)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=top)
    return count


def _open_up(directory: int, name: str) -> None:
    """Let its owner do everything with a directory, by a way that follows no link."""
    with suppress(PermissionError, FileNotFoundError):
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if stat.S_ISDIR(os.fstat(found).st_mode):
                os.chmod(f"/proc/self/fd/{found}", 0o700)
        finally:
            os.close(found)
