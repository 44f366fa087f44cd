"""Paths within a repository, as requests name them."""

from ...domain.rejected import Invalid, NotFound

MAX_PATH_CHARACTERS = 4_096


class FileNotFound(NotFound):
    """Neither side of the comparison has this file. GET …/assembly/files lists the files."""

    code = "file_not_found"


class InvalidPath(Invalid):
    """The path must be relative to the repository, without empty, `.`, `..` or `.git` parts."""

    code = "invalid_path"


def checked_path(given: str) -> str:
    """Return a path parameter as a path within a repository. Raises InvalidPath."""
    path = given.removeprefix("/")
    strange = any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/"))
    if strange or "\0" in path or len(path) > MAX_PATH_CHARACTERS:
        raise InvalidPath
    return path
