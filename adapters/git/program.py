"""
The `git` program on a project's repository, outside of a box: plumbing that looks, checks and stores, and nothing else.

Nothing that a repository chooses runs here: no hook, filter, textconv, driver, monitor or credential helper, and no
working tree is touched. What needs one of these runs in a box (`boxed.py`).
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ..processes.watched import ProcessExit, finished, in_memory
from .inside.shell import parts

#: How long one look or one storing may take.
SECONDS = 600.0
#: What is kept of the program's answer.
OUTPUT_BYTES = 256 * 1024 * 1024

#: What no repository may choose, in every call, also in a box.
NOTHING_RUNS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.alternateRefsCommand": ":",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "commit.gpgSign": "false",
    "advice.addEmbeddedRepo": "false",
}
STORING = {
    "core.bare": "true",
    "core.quotePath": "false",
    # Files larger than this are compared as binary ones, and streamed.
    "core.bigFileThreshold": "4m",
    # On disk before a ref may point to it.
    "core.fsync": "committed,loose-object",
}


class GitFailed(OSError):
    """git could not do what it was asked: its words say why."""

    def __init__(self, what: str, words: str) -> None:
        super().__init__(f"git {what}: {words.strip() or 'failed'}")
        self.words = words


def find_git() -> str:
    """Return where the program is. Raises GitFailed."""
    found = shutil.which("git")
    if found is None:
        raise GitFailed("", "there is no `git` on the PATH; install version 2.39.1 or newer")
    return found


def environment(**more: str) -> dict[str, str]:
    """Return the whole environment of a call: no configuration but the repository's, nobody to ask, no place to go."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        **more,
    }


def options(*chosen: Mapping[str, str]) -> list[str]:
    """Return settings as arguments of git."""
    return [part for settings in chosen for name, value in settings.items() for part in ("-c", f"{name}={value}")]


class Program:
    """git on one repository, known by its directory; objects may be stored elsewhere, borrowing the repository's."""

    def __init__(self, git_dir: str) -> None:
        self._git_dir = git_dir

    def path(self, *parts: str) -> str:
        """Return where something is in the repository's directory."""
        return os.path.join(self._git_dir, *parts)

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """Start a call. Whoever does waits for its end."""
        return subprocess.Popen(
            [find_git(), *options(NOTHING_RUNS, STORING), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._git_dir,
            env=environment(GIT_DIR=self._git_dir),
            start_new_session=True,
        )

    def ask(
        self,
        *arguments: str,
        given: bytes = b"",
        ok: Sequence[int] = (0,),
        limit_bytes: int = OUTPUT_BYTES,
        may_be_cut: bool = False,
    ) -> ProcessExit:
        """Do a call to its end. Raises GitFailed for another exit code than *ok*, and for too long an answer."""
        with in_memory(given) as stdin:
            answer = finished(self.start(*arguments, stdin=stdin.fileno()), limit_bytes, SECONDS)
        if answer.is_cut:
            if may_be_cut:
                return answer
            raise GitFailed(arguments[0], f"the answer has more than {limit_bytes} bytes")
        if answer.code not in ok:
            raise GitFailed(arguments[0], answer.words)
        return answer

    def output(self, *arguments: str, given: bytes = b"", limit_bytes: int = OUTPUT_BYTES) -> bytes:
        """Return what a call answers. Raises GitFailed."""
        return self.ask(*arguments, given=given, limit_bytes=limit_bytes).output

    def records(self, *arguments: str) -> list[bytes]:
        """Return the answer of a call that ends each part of it with NUL. Raises GitFailed."""
        return parts(self.output(*arguments))
