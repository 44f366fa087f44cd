"""
Write the archive on standard input below a directory, in the place of whatever stands there.

Standard library only, run as `python -I -S` in a box, of which the directory is all that can be written to.
"""

import os
import shutil
import sys
import tarfile


def clear(root: str, name: str) -> str:
    """Return where a member goes, with real directories on the way and nothing in its place but a directory."""
    place = root
    *parents, last = name.split("/")
    for part in parents:
        place = os.path.join(place, part)
        if os.path.islink(place) or (os.path.lexists(place) and not os.path.isdir(place)):
            os.unlink(place)
        os.makedirs(place, mode=0o700, exist_ok=True)
    return os.path.join(place, last)


def main(root: str) -> None:
    """Unpack everything."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            place = clear(root, member.name)
            if os.path.isdir(place) and not os.path.islink(place):
                if member.isdir():
                    continue
                shutil.rmtree(place)
            elif os.path.lexists(place):
                os.unlink(place)
            if member.isdir():
                os.mkdir(place, 0o700)
            elif member.issym():
                os.symlink(member.linkname, place)
            elif source := archive.extractfile(member):
                mode = 0o700 if member.mode & 0o100 else 0o600
                with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                    shutil.copyfileobj(source, file)


if __name__ == "__main__":
    main(sys.argv[1])
