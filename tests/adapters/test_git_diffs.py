"""What is shown of a change is what git could apply, and nothing outside of the two trees is ever shown."""

import os
import random

import pytest

from steersman.application.ports.git import ChangedFile, RepositoryUnusable

from .conftest import Scratch

BIG = 10_000_000


def files_of(scratch: Scratch, base: str, head: str) -> dict[str, ChangedFile]:
    found = scratch.repositories.changed_files(scratch.path, base, head)
    assert [file.path for file in found] == sorted(file.path for file in found)
    return {file.path: file for file in found}


def applied(scratch: Scratch, base: str, head: str) -> str:
    """The tree that `git apply` makes of the base and our diff."""
    scratch.git("read-tree", base)
    scratch.git(
        "apply", "--cached", "--whitespace=nowarn", stdin=scratch.repositories.diff(scratch.path, base, head, BIG)
    )
    return scratch.git("write-tree").strip()


def test_git_can_apply_what_is_shown(scratch: Scratch) -> None:
    base = scratch.commit(
        {
            "gone": "1\n2\n",
            "mode": "same\n",
            "no newline": "a\nb",
            "many": "".join(f"{n}\n" for n in range(100)),
            'quo"te\ttab\nline': "x\n",
            "kind": "file\n",
            "é/日本": "1\n",
        }
    )
    (scratch.path / "mode").chmod(0o755)
    (scratch.path / "kind").unlink()
    (scratch.path / "kind").symlink_to("README")
    head = scratch.commit(
        {
            "gone": None,
            "no newline": "a\nb\nc",
            "many": "".join(f"{n}\n" for n in range(100) if n % 30) + "end",
            'quo"te\ttab\nline': "y\n",
            "new": "new\n",
            "empty": "",
            "é/日本": "2\n",
            "-dash": "-\n--- a\n+++ b\n",
        }
    )

    assert applied(scratch, base, head) == scratch.rev(f"{head}^{{tree}}")
    assert applied(scratch, head, base) == scratch.rev(f"{base}^{{tree}}")
    assert scratch.repositories.diff(scratch.path, head, head, BIG) == ""


def test_git_can_apply_whatever_is_changed(scratch: Scratch) -> None:
    chance = random.Random(5)
    before, after = dict[str, str](), dict[str, str]()
    for number in range(40):
        text = [f"{chance.choice('abcdefgh')}\n" for _ in range(chance.randrange(60))]
        before[f"f{number}"] = "".join(text)
        for _ in range(chance.randrange(1, 6)):
            where = chance.randrange(len(text) + 1)
            text[where : where + chance.randrange(4)] = [
                f"{chance.choice('xyz')}\n" for _ in range(chance.randrange(4))
            ]
        after[f"f{number}"] = "".join(text).rstrip("\n") if chance.random() < 0.3 else "".join(text)
    base, head = scratch.commit(before), scratch.commit(after)

    assert applied(scratch, base, head) == scratch.rev(f"{head}^{{tree}}")
    assert applied(scratch, head, base) == scratch.rev(f"{base}^{{tree}}")


def test_lines_are_counted_as_git_counts_them(scratch: Scratch) -> None:
    base = scratch.commit({"a": "1\n2\n3\n", "b": "x\n", "bin": b"\0\1", "d/e": "1\n", "same": "s\n"})
    head = scratch.commit({"a": "1\nTWO\n3\n4\n", "b": None, "bin": b"\0\2", "d/e": "1\n2\n", "n": "1\n2"})

    counted = {
        name: (file.status, file.added_lines, file.removed_lines, file.is_binary)
        for name, file in files_of(scratch, base, head).items()
    }

    said = {
        name: (added, removed)
        for added, removed, name in (
            line.split("\t") for line in scratch.git("diff", "--numstat", base, head).splitlines()
        )
    }
    assert counted == {
        "a": ("modified", 2, 1, False),
        "b": ("deleted", 0, 1, False),
        "bin": ("modified", 0, 0, True),
        "d/e": ("modified", 1, 0, False),
        "n": ("added", 2, 0, False),
    }
    assert {name: (str(c[1]), str(c[2])) for name, c in counted.items() if not c[3]} == {
        name: counts for name, counts in said.items() if name != "bin"
    }


def test_a_file_is_shown_with_its_status_its_change_and_its_content(scratch: Scratch) -> None:
    base = scratch.commit({"a": "1\n", "gone": "g\n", "bin": b"\0\1", "same": "s\n"})
    head = scratch.commit({"a": "2\n", "gone": None, "bin": b"\0\2", "new": "n\n"})

    def shown(path: str) -> tuple[str, str | None, bool, int]:
        view = scratch.repositories.file(scratch.path, base, head, path)
        assert view is not None
        assert view.path == path
        return view.status, view.content, view.is_binary, view.diff.count("\n")

    assert shown("a") == ("modified", "2\n", False, 7)
    assert shown("gone") == ("deleted", None, False, 7)
    assert shown("bin") == ("modified", None, True, 3)
    assert shown("same") == ("unchanged", "s\n", False, 0)
    assert shown("new") == ("added", "n\n", False, 7)


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "src/../README",
        "src/../../outside",
        "/README",
        "/etc/passwd",
        "./README",
        "src//a.txt",
        "src/",
        "src",
        "",
        ".",
        "..",
        "%2e%2e/outside",
        "..%2foutside",
        "README\0",
        "README/x",
        ".git/config",
        "link/passwd",
        "dir-link/a.txt",
        "\ud800",
    ],
)
def test_no_path_leads_out_of_the_trees(scratch: Scratch, path: str) -> None:
    scratch.write({"outside": "secret\n"}, scratch.home)
    (scratch.path / "link").symlink_to("/etc")
    (scratch.path / "dir-link").symlink_to("src")
    head = scratch.commit({})

    assert scratch.repositories.file(scratch.path, head, head, path) is None


def test_a_link_is_shown_as_its_target_and_a_submodule_as_its_commit(scratch: Scratch) -> None:
    (scratch.path / "link").symlink_to("/etc/passwd")
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("add", "link")
    scratch.git("commit", "-q", "-m", "x")

    view = scratch.repositories.file(scratch.path, scratch.rev("HEAD~1"), scratch.rev("HEAD"), "link")
    assert view is not None
    assert view.content == "/etc/passwd"
    module = scratch.repositories.file(scratch.path, scratch.rev("HEAD~1"), scratch.rev("HEAD"), "lib")
    assert module is not None
    assert module.content == f"Subproject commit {'c' * 40}\n"
    assert files_of(scratch, scratch.rev("HEAD~1"), scratch.rev("HEAD"))["lib"].added_lines == 1


def test_names_that_are_no_text_can_be_listed_and_asked_for(scratch: Scratch) -> None:
    head = scratch.commit({os.fsdecode(b"caf\xe9/x"): "1\n", "back\\xe9": "2\n"})

    contents: dict[str, str | None] = {}
    for path in files_of(scratch, scratch.rev("HEAD~1"), head):
        view = scratch.repositories.file(scratch.path, head, head, path)
        contents[path] = view and view.content

    assert contents == {"caf\\xe9/x": "1\n", "back\\xe9": "2\n"}
    assert all(path.isascii() for path in contents), "can be sent as JSON"


@pytest.mark.parametrize("limit", [0, 1, 50, 137, 1000])
def test_a_long_diff_is_cut_and_says_so(scratch: Scratch, limit: int) -> None:
    base = scratch.rev("HEAD")
    head = scratch.commit({"long": "ä€😀\n" * 1000})

    whole = scratch.repositories.diff(scratch.path, base, head, BIG)
    cut = scratch.repositories.diff(scratch.path, base, head, limit)

    text, _, notice = cut.removesuffix("\n").rpartition("\n")
    assert notice == f"... the diff was cut at {limit} bytes"
    assert whole.startswith(text.rstrip("\n"))
    assert len(text.encode()) <= limit + 1
    assert "\ufffd" not in cut
    assert scratch.repositories.diff(scratch.path, base, head, len(whole.encode())) == whole


def test_a_huge_file_is_compared_as_a_binary_one_and_shown_by_its_beginning(scratch: Scratch) -> None:
    base = scratch.commit({"huge": "line\n" * 1_000_000})
    head = scratch.commit({"huge": "line\n" * 999_999 + "end\n"})

    assert files_of(scratch, base, head)["huge"].is_binary
    assert len(scratch.repositories.diff(scratch.path, base, head, BIG)) < 1000
    view = scratch.repositories.file(scratch.path, base, head, "huge")
    assert view is not None
    assert (view.content or "").endswith("\n... the file was cut at 1048576 bytes\n")


def test_a_commit_or_a_repository_that_is_not_there_is_named(scratch: Scratch) -> None:
    for path, code in ((scratch.path, "object_missing"), (scratch.home / "nowhere", "workspace_missing")):
        with pytest.raises(RepositoryUnusable) as refused:
            scratch.repositories.diff(path, "0" * 40, "0" * 40, BIG)
        assert refused.value.code == code
