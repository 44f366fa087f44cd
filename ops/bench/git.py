"""
Measure what git costs: ours, through the port, against plain git's own commands, in a large tree and in a long history.

Two repositories are generated, the same on every machine: `files` is one commit of 50,000 files in 2,500 folders,
`history` some thousand commits of what looks like a library in Python. Each round takes a fresh clone with a clean
checkout through what a run does, once by ours and once by plain git, in turns, so that a busy machine slows both alike:

- two workplaces are made (git: `worktree add`), the first in a repository that never had one;
- 20 files are changed in each, 5 of them in both, and committed (git: `add --all`, `commit`);
- the two are merged (git: `merge`, in the first one's worktree; ours needs none);
- the merge is landed in the clean checkout of `main` (git: `merge --ff-only`);
- both workplaces are removed (git: `worktree remove --force`).

Prints medians over the rounds and their ratios, and how much this process has grown over the large tree. In brackets is
what a processor had to do for it, here and in the processes that were started: busy machines differ. A round whose sides
do not end with the same files, or leave a checkout that is not clean, is no measurement: the run fails.

    python ops/bench/git.py [--files 50000] [--commits 3000] [--rounds 3] [--sides ours git]

It works in the directory for temporary files; $TMPDIR names another disk.
"""

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from steersman.adapters.git.repositories import GitRepositories
from steersman.adapters.processes.bubblewrap import find_box
from steersman.application.ports.git import Contribution

FILES_IN_FOLDER = 20
FOLDERS_IN_FOLDER = 50
#: How many files a child changes, and how many of them the other one changes, too.
TOUCHED = 20
TOUCHED_BY_BOTH = 5
#: The library's first commit has so many modules; one commit in twelve adds another.
FIRST_MODULES = 120
COMMITS_A_MODULE = 12
MOST_MODULES_A_COMMIT = 4
FUNCTIONS = 12
SEED = 20_261_201
EPOCH = 1_700_000_000
SECONDS_BETWEEN_COMMITS = 3_600
AT = datetime(2026, 6, 7, 21, 9, 45, tzinfo=UTC)
MESSAGE = "Touched some files"
WHO = "Somebody <somebody@localhost>"
#: Nothing that somebody has configured on this machine decides what is measured.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Somebody",
    "GIT_AUTHOR_EMAIL": "somebody@localhost",
    "GIT_COMMITTER_NAME": "Somebody",
    "GIT_COMMITTER_EMAIL": "somebody@localhost",
    "LC_ALL": "C",
}
STEPS = ("first workplace", "second workplace", "commit", "merge", "landing", "removal of both")


def git(folder: Path, *arguments: str | Path) -> str:
    """Return what plain git says; a failure of it ends the run."""
    command = ["git", "-C", folder, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout.strip()


# The repositories


def large_tree(files: int) -> Iterator[bytes]:
    """Yield what `fast-import` makes one commit of: so many files, twenty in a folder."""
    yield commit_of(0, "Everything at once")
    for number in range(files):
        folder = number // FILES_IN_FOLDER
        path = f"part{folder // FOLDERS_IN_FOLDER:03}/folder{folder % FOLDERS_IN_FOLDER:02}/file{number:06}.txt"
        lines = (f"line {line} of file {number}: {number * 7_919 % 104_729}\n" for line in range(4 + number % 13))
        yield file_of(path, "".join(lines))


class Module:
    """A module of the library: what its functions return changes with the time."""

    def __init__(self, number: int) -> None:
        self.path = f"src/library/area{number % 17:02}/module{number:04}.py"
        self.test = f"tests/area{number % 17:02}/test_module{number:04}.py"
        self._name = f"module {number}"
        self._returns = [number * 31 + function for function in range(FUNCTIONS)]

    def change(self, function: int, value: int) -> None:
        """Let one of its functions return something else."""
        self._returns[function] = value

    @property
    def text(self) -> str:
        """The module as it is now."""
        functions = (
            f'def compute_{n:02}(given: int, factor: int = {n + 1}) -> int:\n    """Return what {self._name} makes of it."""\n'
            f"    if given < 0:\n        raise ValueError(given)\n    return given * factor + {value}\n"
            for n, value in enumerate(self._returns)
        )
        return f'"""What {self._name} does."""\n\nfrom typing import Final\n\n\n' + "\n\n".join(functions)

    @property
    def test_text(self) -> str:
        """The test that holds for the module as it is now."""
        return f'"""Tests {self._name}."""\n\n' + "\n\n".join(
            f"def test_{n:02}() -> None:\n    assert compute_{n:02}(0) == {value}\n"
            for n, value in enumerate(self._returns)
        )


def long_history(commits: int) -> Iterator[bytes]:
    """Yield what `fast-import` makes so many commits of: each changes a few functions, and their tests."""
    chance = random.Random(SEED)
    modules = [Module(number) for number in range(FIRST_MODULES)]
    yield commit_of(0, "The library as it was found")
    yield from files_of(modules)
    for number in range(1, commits):
        yield commit_of(number, f"Changed what some functions return, for the {number}th time")
        if number % COMMITS_A_MODULE == 0:
            modules.append(Module(len(modules)))
        # The newest one is changed again and again, as it is with what is new.
        changed = [modules[-1], *(pick(chance, modules) for _ in range(number % MOST_MODULES_A_COMMIT))]
        for module in changed:
            module.change(int(chance.random() * FUNCTIONS), number)
        yield from files_of(changed)


def pick(chance: random.Random, modules: Sequence[Module]) -> Module:
    """Return one of the modules. Only `random` is the same in every Python."""
    return modules[int(chance.random() * len(modules))]


def commit_of(number: int, message: str) -> bytes:
    """Return the beginning of a commit on `main`; what it changes follows."""
    when = f"{EPOCH + number * SECONDS_BETWEEN_COMMITS} +0000"
    said = f"{message}\n".encode()
    return b"commit refs/heads/main\ncommitter %s %s\ndata %d\n%s\n" % (WHO.encode(), when.encode(), len(said), said)


def files_of(modules: Iterable[Module]) -> Iterator[bytes]:
    """Yield these modules and their tests as they are now."""
    for module in modules:
        yield file_of(module.path, module.text)
        yield file_of(module.test, module.test_text)


def file_of(path: str, text: str) -> bytes:
    """Return a file of the present commit."""
    content = text.encode()
    return b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content)


def generate(repository: Path, stream: Iterable[bytes]) -> None:
    """Make a repository of a stream, packed as one that has been there for long."""
    repository.mkdir()
    git(repository, "init", "--quiet", "--template=", "--initial-branch=main")
    command = ["git", "-C", repository, "fast-import", "--quiet"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        for piece in stream:
            importing.stdin.write(piece)
        importing.stdin.close()
    if importing.returncode != 0:
        raise SystemExit("git fast-import failed")
    git(repository, "gc", "--quiet")


# The two sides


class Side(Protocol):
    """Whoever takes a repository through what a run does."""

    def make(self, workplace: Path, base: str) -> None:
        """On return the workplace has the files of *base*."""
        ...

    def commit(self, workplace: Path, parent: str) -> str:
        """Commit whatever is changed in the workplace; return the commit."""
        ...

    def merge(self, base: str, first: tuple[Path, str], second: tuple[Path, str]) -> str:
        """Merge what two workplaces have committed; return the commit."""
        ...

    def land(self, old: str, new: str) -> None:
        """Move `main` and its checkout."""
        ...

    def remove(self, workplace: Path) -> None:
        """On return the workplace is gone."""
        ...


class PlainGit:
    """Git's own commands, one process each, as somebody would type them."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository

    def make(self, workplace: Path, base: str) -> None:
        git(self._repository, "worktree", "add", "--quiet", "--detach", workplace, base)

    def commit(self, workplace: Path, parent: str) -> str:
        git(workplace, "add", "--all")
        git(workplace, "commit", "--quiet", "--message", MESSAGE)
        return git(workplace, "rev-parse", "HEAD")

    def merge(self, base: str, first: tuple[Path, str], second: tuple[Path, str]) -> str:
        git(first[0], "merge", "--quiet", "--no-edit", second[1])
        return git(first[0], "rev-parse", "HEAD")

    def land(self, old: str, new: str) -> None:
        git(self._repository, "merge", "--quiet", "--ff-only", new)

    def remove(self, workplace: Path) -> None:
        git(self._repository, "worktree", "remove", "--force", workplace)


class Ours:
    """The port that the service drives runs with, in this process."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._port = GitRepositories(repository.with_name(f"{repository.name}-scratch"), find_box())

    def make(self, workplace: Path, base: str) -> None:
        self._port.make_workplace(self._repository, workplace, base)

    def commit(self, workplace: Path, parent: str) -> str:
        return self._port.commit_workplace(self._repository, workplace, parent, AT, MESSAGE).commit

    def merge(self, base: str, first: tuple[Path, str], second: tuple[Path, str]) -> str:
        made = [
            Contribution(subtask_id=number, branch=f"steersman/{workplace.name}", commit=commit)
            for number, (workplace, commit) in enumerate((first, second), start=1)
        ]
        integrated = self._port.integrate(self._repository, "bench", base, made, AT, "Merged two children")
        assert not integrated.conflicts, integrated.conflicts
        return integrated.commit

    def land(self, old: str, new: str) -> None:
        outcome = self._port.merge(self._repository, "main", old, new)
        assert outcome.state == "merged", outcome

    def remove(self, workplace: Path) -> None:
        self._port.remove_workplace(self._repository, workplace, None)


SIDES: dict[str, Callable[[Path], Side]] = {"ours": Ours, "git": PlainGit}


# Measuring


class StepCost(NamedTuple):
    """How long something took, and what a processor had to do for it."""

    seconds: float
    processor_seconds: float


class GitRound(NamedTuple):
    """What the steps of one round took, by their names, and the tree that `main` ended with."""

    costs: dict[str, list[StepCost]]
    tree: str


class Stopwatch:
    """What each step took, by its name."""

    def __init__(self) -> None:
        self.costs: dict[str, list[StepCost]] = {step: [] for step in STEPS}

    @contextmanager
    def of(self, step: str) -> Generator[None]:
        """Take the time of what is done within, once the disk has what was written before: nobody else waits for that."""
        os.sync()
        began = now()
        yield
        ended = now()
        self.costs[step].append(
            StepCost(ended.seconds - began.seconds, ended.processor_seconds - began.processor_seconds)
        )


def now() -> StepCost:
    """Return the time, and what processors have done so far for this process and for those that it has seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return StepCost(time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in used))


def touch(workplace: Path, names: Sequence[str], *, at_the_end: bool) -> None:
    """Add a line to each of these files: to its beginning or its end, so that two who do so do not meet."""
    for name in names:
        path = workplace / name
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}# touched\n" if at_the_end else f"# touched\n{text}", encoding="utf-8")


def touched(repository: Path) -> tuple[list[str], list[str]]:
    """Return the files that the first and the second child change: all over the tree, some of them both."""
    names = git(repository, "ls-tree", "-r", "--name-only", "main").splitlines()
    wanted = 2 * TOUCHED - TOUCHED_BY_BOTH
    spread = [names[number * len(names) // wanted] for number in range(wanted)]
    return spread[:TOUCHED], spread[TOUCHED - TOUCHED_BY_BOTH :]


def take_through(side: Side, repository: Path, home: Path, changed: tuple[list[str], list[str]]) -> GitRound:
    """Take a fresh repository through what a run does, in which two children change these files."""
    base = git(repository, "rev-parse", "main")
    first, second = home / "first", home / "second"
    watch = Stopwatch()
    with watch.of("first workplace"):
        side.make(first, base)
    with watch.of("second workplace"):
        side.make(second, base)
    made: list[tuple[Path, str]] = []
    for workplace, names in zip((first, second), changed, strict=True):
        touch(workplace, names, at_the_end=workplace == second)
        with watch.of("commit"):
            made.append((workplace, side.commit(workplace, base)))
    with watch.of("merge"):
        merged = side.merge(base, *made)
    with watch.of("landing"):
        side.land(base, merged)
    with watch.of("removal of both"):
        side.remove(first)
        side.remove(second)
    if git(repository, "status", "--porcelain"):
        raise SystemExit(f"{type(side).__name__} left a checkout that is not clean")
    return GitRound(watch.costs, git(repository, "rev-parse", "main^{tree}"))


def measure(
    template: Path, changed: tuple[list[str], list[str]], names: Sequence[str], rounds: int, home: Path
) -> dict[str, list[GitRound]]:
    """Take clones of a repository through a run on each side, in turns, and the other one first each time."""
    results: dict[str, list[GitRound]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            place = home / "round"
            place.mkdir()
            git(home, "clone", "--quiet", "--local", "--template=", template, place / "repository")
            results[name].append(take_through(SIDES[name](place / "repository"), place / "repository", place, changed))
            shutil.rmtree(place)
    if len(trees := {found.tree for found_by_side in results.values() for found in found_by_side}) != 1:
        raise SystemExit(f"not all ended with the same files: {sorted(trees)}")
    return results


def median(rounds: Sequence[GitRound], step: str) -> StepCost:
    """Return the medians of what a step took."""
    return StepCost(
        *map(statistics.median, zip(*(cost for found in rounds for cost in found.costs[step]), strict=True))
    )


def print_rows(name: str, results: dict[str, list[GitRound]]) -> None:
    """Print what each step took; a side that was not asked for has no figure."""
    for step in STEPS:
        took = {side: median(rounds, step) for side, rounds in results.items()}
        figures = [shown(cost.seconds * 1_000, cost.processor_seconds * 1_000) for cost in took.values()]
        if len(took) == len(SIDES):
            figures.append(shown(*(own / plain for own, plain in zip(took["ours"], took["git"], strict=True))))
        print(f"{name:<9}{step:<18}" + "".join(f"{figure:>20}" for figure in figures), flush=True)


def shown(figure: float, of_processor: float) -> str:
    """Return a figure, and in brackets the same of a processor."""
    digits = 0 if figure >= 100 else 2
    return f"{figure:.{digits}f} ({of_processor:.{digits}f})"


def resident() -> tuple[float, float]:
    """Return how much memory this process has, and the most that it had since `forget_peak`, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    has, most = (int(status.split(f"{name}:")[1].split()[0]) / 1_024 for name in ("VmRSS", "VmHWM"))
    return has, most


def forget_peak() -> None:
    """Count the most memory from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what git costs, ours against plain git's own commands.")
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--commits", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    given = parser.parse_args()
    repositories = {"files": large_tree(given.files), "history": long_history(given.commits)}
    with tempfile.TemporaryDirectory(prefix="steersman-bench-") as place:
        home = Path(place)
        for name, stream in repositories.items():
            generate(home / name, stream)
            counted = git(home / name, "rev-list", "--count", "main")
            files = len(git(home / name, "ls-tree", "-r", "--name-only", "main").splitlines())
            print(f"{name}: {files} files, {counted} commits, main is {git(home / name, 'rev-parse', 'main')}")
        columns = [*given.sides, "ratio"] if len(given.sides) == len(SIDES) else given.sides
        print(f"{'':<9}{'ms':<18}" + "".join(f"{column:>20}" for column in columns))
        for name in repositories:
            # Before the memory is looked at: so many names are no small thing themselves.
            changed = touched(home / name)
            forget_peak()
            before, _ = resident()
            print_rows(name, measure(home / name, changed, given.sides, given.rounds, home))
            after, most = resident()
            if name == "files":
                grown = f"{after - before:.0f} MiB, and by {most - before:.0f} MiB at most"
                print(f"this process grew over it by {grown}, from {before:.0f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
