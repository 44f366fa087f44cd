"""What a repository and its user have configured: looked at by an allow-list, so that git behaves in a workplace as for them."""

import os
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..processes.watched import finished
from .program import SECONDS, environment, find_git, options

#: Names of settings that a workplace gets; after a dot at the end, any name.
SETTINGS = (
    "core.eol",
    "core.autocrlf",
    "core.safecrlf",
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.checkroundtripencoding",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "user.",
    "author.",
    "committer.",
    "filter.",
    "lfs.",
)
#: Where a user's lists are, if no setting names them.
USUAL_PLACES = {"core.excludesfile": "ignore", "core.attributesfile": "attributes"}
LIST_BYTES = 4 * 1024 * 1024
CONFIG_BYTES = 4 * 1024 * 1024
#: What tells git about its user's own configuration, and nothing else of the service's environment.
USERS = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")

Settings = Sequence[tuple[str, str]]
#: What every repository of ours says of itself.
PLAIN: Settings = (("core.repositoryformatversion", "0"), ("core.bare", "false"))


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How git behaves for the user of a repository: settings, and the lists that are no part of its trees."""

    settings: tuple[tuple[str, str], ...]
    exclude: bytes
    attributes: bytes
    #: The user's own lists: weaker than those of the repository.
    user_exclude: bytes
    user_attributes: bytes
    sparse: bytes | None
    shallow: bytes | None

    def files(self, directory: Path, *more: tuple[str, str]) -> dict[str, bytes]:
        """Return what stands in a git directory of ours for it, and for *more* settings."""
        lists_of_user = [
            (name, str(directory / "info" / place))
            for name, place in (("core.excludesfile", "user-exclude"), ("core.attributesfile", "user-attributes"))
        ]
        lists = {
            "config": written([*PLAIN, *self.settings, *more, *lists_of_user]),
            "info/exclude": self.exclude,
            "info/attributes": self.attributes,
            "info/user-exclude": self.user_exclude,
            "info/user-attributes": self.user_attributes,
            "info/sparse-checkout": self.sparse,
            "shallow": self.shallow,
        }
        return {name: content for name, content in lists.items() if content}


def listed(path: str) -> Settings:
    """Return what one configuration file says, without what it includes. Raises OSError, ValueError."""
    found = os.stat(path)
    return _listed(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


_known: dict[str, tuple[tuple[int, ...], Settings]] = {}


def _listed(path: str, version: tuple[int, ...]) -> Settings:
    known = _known.get(path)
    if known is not None and known[0] == version:
        return known[1]
    settings = _asked(["--no-includes", "--file", path], environment())
    if len(_known) > 1000:
        _known.clear()
    _known[path] = (version, settings)
    return settings


def _asked(arguments: Sequence[str], env: Mapping[str, str], cwd: str = "/") -> Settings:
    process = subprocess.Popen(
        [find_git(), *options({"core.fsmonitor": "false"}), "config", "--null", *arguments, "--list"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
    )
    answer = finished(process, CONFIG_BYTES, SECONDS)
    if answer.code or answer.is_cut:
        raise ValueError(answer.words.strip() or "the configuration is too long")
    entries = (entry.partition("\n") for entry in os.fsdecode(answer.output).split("\0") if entry)
    # A name without a value means true.
    return [(name, value if newline else "true") for name, newline, value in entries]


def behaviour(control: str, common: str) -> Behaviour:
    """Return how git behaves for this repository and the service's user. Raises OSError, ValueError."""
    users = {name: os.environ[name] for name in USERS if name in os.environ}
    plain = {name: value for name, value in environment(GIT_DIR=control).items() if name not in USERS}
    effective = _asked(["--includes"], {**plain, **users}, control)
    named = dict(effective)
    return Behaviour(
        settings=tuple(
            (name, value) for name, value in effective if name.startswith(SETTINGS) and _is_allowed(name, named)
        ),
        exclude=content(os.path.join(common, "info", "exclude")) or b"",
        attributes=content(os.path.join(common, "info", "attributes")) or b"",
        user_exclude=_users_list("core.excludesfile", named, users),
        user_attributes=_users_list("core.attributesfile", named, users),
        sparse=_sparse(control, named),
        shallow=content(os.path.join(common, "shallow")),
    )


def _is_allowed(name: str, named: Mapping[str, str]) -> bool:
    if name.startswith("core."):
        return name in SETTINGS and not (name.startswith("core.sparse") and not _is_sparse(named))
    return True


def _is_sparse(named: Mapping[str, str]) -> bool:
    return named.get("core.sparsecheckout", "").lower() in ("true", "yes", "on", "1")


def _sparse(control: str, named: Mapping[str, str]) -> bytes | None:
    return content(os.path.join(control, "info", "sparse-checkout")) if _is_sparse(named) else None


def _users_list(name: str, named: Mapping[str, str], users: Mapping[str, str]) -> bytes:
    home = users.get("HOME", "/nonexistent")
    usual = os.path.join(users.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git", USUAL_PLACES[name])
    path = named.get(name, usual)
    return content(os.path.join(home, path[2:]) if path.startswith("~/") else path) or b""


def content(path: str) -> bytes | None:
    """Return what a list holds; what is no file, or longer than any list, is none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found = file.read(LIST_BYTES + 1)
                return found if len(found) <= LIST_BYTES else None
    return None


def origin(settings: Settings) -> str | None:
    """Return the URL that a repository was cloned from, without the secret that it may hold."""
    url = dict(settings).get("remote.origin.url")
    if url is None or "://" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.password else url


def written(settings: Iterable[tuple[str, str]]) -> bytes:
    """Return the configuration file that says this."""
    lines = list[str]()
    for name, value in settings:
        section, _, rest = name.partition(".")
        subsection, _, variable = rest.rpartition(".")
        head = f'[{section} "{_quoted(subsection)}"]' if subsection else f"[{section}]"
        text = _quoted(value).replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
        lines.append(f'{head}\n\t{variable} = "{text}"\n')
    return os.fsencode("".join(lines))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
