"""Pipes in the place of files that git would open, and wait at for ever."""

from __future__ import annotations

import os
import stat

from .shell import Failed

LISTS = (b".gitignore", b".gitattributes", b".gitmodules", b".lfsconfig")


def holds_files_alone(objects: str) -> bool:
    """
    Return whether a directory of objects, which is no link, holds directories and files and nothing else.

    git opens whatever has the name of a pack, of an object or of a list there, and would wait for ever at a pipe.
    """
    left = [objects]
    try:
        if not stat.S_ISDIR(os.lstat(objects).st_mode):
            return False
        while left:
            with os.scandir(left.pop()) as found:
                for item in found:
                    if item.is_dir(follow_symlinks=False):
                        left.append(item.path)
                    elif not item.is_file(follow_symlinks=False):
                        return False
    except OSError:
        return False
    return True


def look_for_pipes(workplace: str) -> None:
    """Raise Failed for what git reads and is no file: git would wait for ever for somebody to write in it."""
    for directory, _, names in os.walk(os.fsencode(workplace)):
        # Of repositories below; the workplace's own git directory is not read.
        is_gits = b".git" in os.path.relpath(directory, os.fsencode(workplace)).split(b"/")[1:]
        for name in names:
            if (is_gits or name in LISTS) and stat.S_ISFIFO(os.lstat(os.path.join(directory, name)).st_mode):
                path = os.path.relpath(os.path.join(directory, name), os.fsencode(workplace))
                raise Failed("pipe_in_the_way", f"{os.fsdecode(path)!r} is a pipe, for which git would wait for ever")
