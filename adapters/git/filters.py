"""What a file's content is in the repository and in a checkout, and which files git does not look at."""

import os
import stat
from collections.abc import Mapping
from io import BytesIO

from dulwich.attrs import (
    AttributeValue,
    GitAttributes,
    Pattern,
    compile_gitattributes_patterns,
    parse_git_attributes,
)
from dulwich.config import Config
from dulwich.filters import (
    FilterBlobNormalizer,
    FilterContext,
    FilterDriver,
    FilterRegistry,
    ProcessFilterDriver,
)
from dulwich.ignore import IgnoreFilter, IgnoreFilterManager, default_user_ignore_filter_path
from dulwich.objects import Blob, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from .filter_commands import FilterCommands
from .objects import Objects
from .refs import read_ref


class ConfiguredFilters(FilterRegistry):
    """The drivers that the configuration names, and no other, as in git: an attribute alone converts nothing."""

    #: The file that is converted.
    path = b""

    def get_driver(self, name: str) -> FilterDriver | None:
        """Return the configured driver; the library would use its own LFS store where none is configured."""
        section = (b"filter", name.encode())
        config: Config | None = self.config
        if config is None or not any(_setting(config, section, key) for key in (b"clean", b"smudge", b"process")):
            return None
        driver = super().get_driver(name)
        if isinstance(driver, FilterCommands):
            driver.path = self.path
        return driver

    def _create_from_config(self, name: str) -> FilterDriver | None:
        configured = super()._create_from_config(name)
        return FilterCommands(configured) if isinstance(configured, ProcessFilterDriver) else configured


def _setting(config: Config, section: tuple[bytes, bytes], key: bytes) -> bytes | None:
    try:
        return config.get(section, key)
    except KeyError:
        return None


class Attributes(GitAttributes):
    """The attributes of a checkout, with the user's own below and the repository's `info/attributes` above them."""

    def __init__(self, repo: Repo, tree: ObjectID | None) -> None:
        """Read them; those of directories from *tree*, or from the checkout where *tree* is None."""
        super().__init__()
        self._directories = _attributes_of(repo, tree)
        config = repo.get_config_stack()
        try:
            own = os.path.expanduser(os.fsdecode(config.get((b"core",), b"attributesFile")))
        except KeyError:
            own = os.path.join(
                os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "git", "attributes"
            )
        self._own = _attributes_file(own)
        # Not in the git directory of a linked worktree.
        self._shared = _attributes_file(os.path.join(repo.commondir(), "info", "attributes"))

    def match_path(self, path: bytes) -> dict[bytes, AttributeValue]:
        """Return the attributes of a path."""
        found: dict[bytes, AttributeValue] = {}
        for source in (self._own, self._directories, self._shared):
            if source is not None:
                found.update(source.match_path(path))
        return found


def _attributes_of(repo: Repo, tree: ObjectID | None) -> GitAttributes:
    """
    Return what every `.gitattributes` of *tree* says, or where it is None of the checkout, HEAD's where that has none.

    The library's own reader takes whatever has that name for a file, a directory or a pipe too.
    """
    objects, root = Objects(repo), repo.path if tree is None else None
    if tree is None and (head := read_ref(repo, Ref(b"HEAD"))):
        tree = objects.tree_of(head)

    def load(directory: bytes) -> list[tuple[Pattern, Mapping[bytes, AttributeValue]]]:
        name = directory + b"/.gitattributes" if directory else b".gitattributes"
        path = os.path.join(root, os.fsdecode(name)) if root is not None else ""
        if _is_file(path):
            with open(path, "rb") as file:
                return compile_gitattributes_patterns(parse_git_attributes(file), name, directory)
        entry = objects.find(tree, name) if tree is not None else None
        if entry is None or not stat.S_ISREG(entry[0]):
            return []
        return compile_gitattributes_patterns(parse_git_attributes(BytesIO(objects.blob(entry[1]))), name, directory)

    return GitAttributes(load(b""), directory_loader=load)


def _is_file(path: str) -> bool:
    """Return whether a regular file is at the path, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _attributes_file(path: str) -> GitAttributes | None:
    return GitAttributes.from_file(path) if os.path.isfile(path) else None


class Filters:
    """
    Line endings (`core.autocrlf`, `text`, `eol`) and filter commands (LFS among them), as git would apply them.

    `working-tree-encoding` and `ident` are not applied: such files keep the bytes that they have in the checkout.
    """

    def __init__(self, repo: Repo, tree: ObjectID | None) -> None:
        """Take the attributes from *tree*, or from the checkout where *tree* is None."""
        config = repo.get_config_stack()
        self._registry = ConfiguredFilters(config, repo)
        context = FilterContext(self._registry)
        self._context = context
        self._normalizer = FilterBlobNormalizer(config, Attributes(repo, tree), repo=repo, filter_context=context)

    def to_repository(self, path: bytes, content: bytes) -> bytes:
        """Return what is stored of a file that has this content in the checkout. Raises FilterError."""
        self._registry.path = path
        return self._normalizer.checkin_normalize(Blob.from_string(content), path).data

    def to_checkout(self, path: bytes, content: bytes) -> bytes:
        """Return what a checkout shows of a file that is stored with this content. Raises FilterError."""
        self._registry.path = path
        return self._normalizer.checkout_normalize(Blob.from_string(content), path).data

    def close(self) -> None:
        """End the filter processes."""
        self._context.close()


class Ignored(IgnoreFilterManager):
    """What `.gitignore`, `info/exclude` and the user's own list say about untracked paths."""

    def __init__(self, repo: Repo, root: str) -> None:
        """Read the lists that hold for the checkout at *root*."""
        config = repo.get_config_stack()
        ignore_case = config.get_boolean((b"core",), b"ignorecase", False)
        lists: list[IgnoreFilter] = []
        # The later list wins; info/exclude belongs to the repository, not to one worktree of it.
        for path in (default_user_ignore_filter_path(config), os.path.join(repo.commondir(), "info", "exclude")):
            if os.path.isfile(path := os.path.expanduser(path)):
                lists.append(IgnoreFilter.from_path(path, ignore_case))
        super().__init__(root, lists, ignore_case)

    def _load_path(self, path: str) -> IgnoreFilter | None:
        """What is no regular file says nothing, as in git; the library opens also a directory, or waits for a pipe."""
        if path not in self._path_filters and not _is_file(os.path.join(self._top_path, path, ".gitignore")):
            self._path_filters[path] = None
        return super()._load_path(path)

    def _is_dir(self, path: str) -> bool:
        """Only what is written with a slash is a directory: a symbolic link to one is none."""
        return path.endswith("/")

    def ignores(self, path: bytes) -> bool:
        """Return whether git leaves this untracked file alone."""
        return self.is_ignored(os.fsdecode(path)) is True

    def prunes(self, path: bytes) -> bool:
        """Return whether nothing below this directory can be other than ignored."""
        return self.may_prune_directory(os.fsdecode(path) + "/")
