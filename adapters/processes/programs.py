"""What a program needs to be seen of: itself, the links that lead to it, its interpreter, and what they import."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from .box import Mount

#: A box shows these in any case.
SYSTEM = tuple(map(Path, ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")))
#: What belongs to a program beside the folder `bin` that it is in. Never `share`, where programs keep their users' things.
BESIDE_BIN = ("bin", "lib", "lib64", "libexec", "include")
MOST_LINKS = 40
MOST_INTERPRETERS = 8
SHEBANG_BYTES = 1_024


def mounts_of(argv: Sequence[str], path: str | None) -> tuple[Mount, ...]:
    """
    Return what a command needs to be seen of, beyond the system: its program, and every file that it names.

    *path* is its PATH. A program that starts others, which are no part of the system, needs more than this finds.
    """
    found: dict[Path, None] = {}
    for word in argv:
        if os.path.isabs(word) and os.path.isfile(word):
            for place in _places(Path(word), path, MOST_INTERPRETERS):
                found.setdefault(place)
    return tuple(Mount(source=place) for place in found if not any(other in found for other in place.parents))


def _places(program: Path, path: str | None, depth: int) -> Iterator[Path]:
    real = program
    for _ in range(MOST_LINKS):
        real = _without_linked_parents(real)
        if not _is_system(real):
            yield from _of_virtual_environment(real)
        if not real.is_symlink():
            break
        if not _is_system(real):
            yield real
        real = Path(os.path.normpath(real.parent / os.readlink(real)))
    if not _is_system(real):
        yield from _around(real)
    if depth and (interpreter := _interpreter(real, path)):
        yield from _places(Path(interpreter), path, depth - 1)


def _without_linked_parents(program: Path) -> Path:
    """Return a program's path with every link on the way resolved, but not the program itself."""
    return Path(os.path.realpath(program.parent)) / program.name


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in SYSTEM)


def _of_virtual_environment(program: Path) -> Iterator[Path]:
    for root in program.parents:
        if (root / "pyvenv.cfg").is_file():
            yield root
            return


def _around(program: Path) -> Iterator[Path]:
    """Give a real file of a program, and what belongs to it."""
    yield program
    packages = [root for root in program.parents if root.name == "node_modules"]
    if packages:
        yield packages[-1]
        return
    shims = next(
        (root for root in program.parents if root.name == "shims" and (root.parent / "versions").is_dir()), None
    )
    if shims is not None:
        yield shims.parent
        return
    prefix = program.parent.parent
    if program.parent.name == "bin" and prefix not in (Path("/"), Path.home()):
        yield from (prefix / name for name in BESIDE_BIN if (prefix / name).is_dir())


def _interpreter(program: Path, path: str | None) -> str | None:
    """Return what runs a script, by its first line; None if it needs nobody, or nobody is there."""
    try:
        with program.open("rb") as file:
            first = file.readline(SHEBANG_BYTES)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
        return shutil.which(name, path=path) if name else None
    return words[0] if words and os.path.isfile(words[0]) else None
