"""The outside of one service in memory: a git that merges, agents that remember, and a log that can lose an append."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from steersman.application.ports.agents import (
    AgentFailed,
    AgentInfo,
    AgentUpdate,
    SessionRequest,
    TurnEnd,
    TurnObserver,
)
from steersman.application.ports.git import (
    ChangedFile,
    CommitFailed,
    Contribution,
    GitConflict,
    Integrated,
    MergeOutcome,
    PathConflict,
    RepositoryUnusable,
    WorkplaceLost,
    WorkplaceState,
    WorkplaceUnmade,
)
from steersman.application.ports.log import Append, EventLog, LogUnavailable, Proposal
from steersman.application.ports.outside import CommandResult
from steersman.domain.event import Fact
from steersman.domain.git import Commit
from steersman.domain.work.workers import Fingerprint

Files = dict[str, str]


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class MemoryGit:
    """One repository: trees are maps of paths, commits and merges are functions of what goes in, as the port promises."""

    def __init__(self) -> None:
        self._trees: dict[str, Files] = {}
        self._commits: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.branches: dict[str, str] = {}
        self.conflicts: set[str] = set()
        self.workplaces: dict[Path, Files] = {}
        #: Those in whose place something else stands, and what it is.
        self.spoiled: dict[Path, WorkplaceState] = {}
        #: The commit that each workplace's name holds, and what every commit of a workplace says.
        self.taken: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        #: The codes with which the next workplaces cannot be made.
        self.unmade: list[str] = []
        #: How many files of every workplace are ignored.
        self.ignored = 0
        #: Whether somebody may write in a workplace now.
        self.is_at_work: Callable[[Path], bool] = lambda _: False
        #: How many of the next commits fail.
        self.failing_commits = 0
        self.dirty = False
        self._lock = threading.RLock()
        self.branches["main"] = self._commit({"a.txt": "hi"}, (), "init").commit

    def files(self, commit: str) -> Files:
        """Return what a commit holds."""
        return self._trees[self._commits[commit][0]]

    def commit_to(self, branch: str, files: Files) -> None:
        """Let somebody commit these files to a branch."""
        with self._lock:
            at = self.branches[branch]
            self.branches[branch] = self._commit(self.files(at) | files, (at,), "somebody").commit

    def settings(self, repository: Path) -> dict[str, object]:
        """Say nothing about what agents may do."""
        return {}

    def tip(self, repository: Path, branch: str) -> Commit:
        if branch not in self.branches:
            raise RepositoryUnusable("no_commit", branch)
        return self._named(self.branches[branch])

    def obstacle(self, repository: Path, branch: str) -> str | None:
        return "repository_dirty" if self.dirty else None

    def lends(self, repository: Path) -> Sequence[Path]:
        return (repository / ".git" / "objects",)

    def make_workplace(self, repository: Path, workplace: Path, base: str) -> None:
        with self._lock:
            if self.unmade:
                raise WorkplaceUnmade(self.unmade.pop(0), f"{workplace} cannot be made")
            self.workplaces[workplace] = dict(self.files(base))
            self.spoiled.pop(workplace, None)

    def look_at(self, repository: Path, workplace: Path) -> WorkplaceState:
        with self._lock:
            return self.spoiled.get(workplace, "whole") if workplace in self.workplaces else "vanished"

    def spoil(self, workplace: Path, state: WorkplaceState) -> None:
        """Let what stands there be something else than what was made: nothing at all, another directory, half of it."""
        with self._lock:
            if state == "vanished":
                self.workplaces.pop(workplace, None)
                return
            self.workplaces[workplace] = {"foreign.txt": "of nobody here"}
            self.spoiled[workplace] = state

    def commit_workplace(self, repository: Path, workplace: Path, parent: str, at: datetime, message: str) -> Commit:
        with self._lock:
            assert not self.is_at_work(workplace), "somebody may write while it is committed"
            if self.failing_commits:
                self.failing_commits -= 1
                raise CommitFailed("the index is locked")
            if (state := self.look_at(repository, workplace)) != "whole":
                raise WorkplaceLost(state, f"{workplace} is {state}")
            made = self._commit(dict(self.workplaces[workplace]), (parent,), f"{at} {message}")
            if made.tree == self._named(parent).tree:
                return self._named(parent)
            self.taken[workplace.name] = made.commit
            self.messages[made.commit] = message
            return made

    def count_ignored(self, repository: Path, workplace: Path) -> int:
        return self.ignored

    def fingerprint(self, repository: Path, workplace: Path) -> Fingerprint:
        with self._lock:
            if self.look_at(repository, workplace) != "whole":
                return Fingerprint(tree_hash="", workspace_hash="")
            tree = _digest(sorted(self.workplaces[workplace].items()))
            return Fingerprint(tree_hash=tree, workspace_hash=f"w{tree}")

    def remove_workplace(self, repository: Path, workplace: Path, branch: str | None) -> None:
        with self._lock:
            self.workplaces.pop(workplace, None)
            self.spoiled.pop(workplace, None)
            self.taken.pop(workplace.name, None)
            if branch is not None:
                self.branches.pop(branch, None)

    def integrate(
        self,
        repository: Path,
        run_id: str,
        base: str,
        contributions: Sequence[Contribution],
        at: datetime,
        message: str,
    ) -> Integrated:
        with self._lock:
            head, conflicts = base, list[PathConflict]()
            for contribution in contributions:
                files, lost = self._merged(head, contribution.commit)
                if lost:
                    ref = f"refs/steersman/conflicts/{run_id}/{contribution.subtask_id}"
                    self.conflicts.add(ref)
                    conflicts.append(
                        PathConflict(
                            branch=contribution.branch,
                            paths=lost,
                            ref=ref,
                            subtask_id=contribution.subtask_id,
                            replaced=head,
                        )
                    )
                head = self._commit(files, (head, contribution.commit), f"{at} {message}").commit
            named, changed = self._named(head), self.files(head) != self.files(base)
            return Integrated(commit=named.commit, tree=named.tree, has_changes=changed, conflicts=tuple(conflicts))

    def remove_conflicts(self, repository: Path, run_id: str) -> None:
        with self._lock:
            prefix = f"refs/steersman/conflicts/{run_id}/"
            self.conflicts = {ref for ref in self.conflicts if not ref.startswith(prefix)}

    def remove_merged(self, repository: Path, run_id: str) -> None:
        """What is merged here is never swept away."""

    def point_branch(self, repository: Path, branch: str, old: str | None, new: str) -> None:
        with self._lock:
            if self.branches.get(branch) not in (old, new):
                raise GitConflict(f"{branch} is at neither {old} nor {new}")
            self.branches[branch] = new

    def prepare_merge(
        self,
        repository: Path,
        run_id: str,
        branch: str,
        approved: Commit,
        at: datetime,
        message: str,
        base: str | None = None,
    ) -> MergeOutcome:
        with self._lock:
            if self.dirty:
                return MergeOutcome(state="blocked", reason="repository_dirty")
            old = self.branches[branch]
            at_old = self._named(old).tree
            if approved.commit in self._ancestors(old):
                return MergeOutcome(state="merged", commit=old, old=old, old_tree=at_old, tree=at_old)
            if old in self._ancestors(approved.commit):
                return MergeOutcome(
                    state="merged", commit=approved.commit, old=old, old_tree=at_old, tree=approved.tree
                )
            files, lost = self._merged(old, approved.commit)
            if lost:
                return MergeOutcome(state="conflicted", old=old, old_tree=at_old, conflicting_paths=lost)
            made = self._commit(files, (old, approved.commit), f"{at} {message}")
            common = self.files(self._parted(old, approved.commit))
            meets = _changed(common, self.files(old)) & _changed(common, self.files(approved.commit))
            return MergeOutcome(
                state="merged",
                commit=made.commit,
                old=old,
                old_tree=at_old,
                tree=made.tree,
                meets=tuple(sorted(meets)),
            )

    def seal(self, repository: Path, run_id: str, onto: str, approved: Commit, at: datetime, message: str) -> str:
        with self._lock:
            made = self._commit(self.files(approved.commit), (onto, approved.commit), f"{at} {message}")
            self.messages[made.commit] = message
            return made.commit

    def merge(self, repository: Path, branch: str, old: str, new: str) -> MergeOutcome:
        with self._lock:
            if self.branches[branch] not in (old, new):
                return MergeOutcome(state="blocked", reason="head_moved")
            self.branches[branch] = new
            return MergeOutcome(state="merged", commit=new, old=old)

    def changed_files(self, repository: Path, base: str, head: str) -> Sequence[ChangedFile]:
        paths = sorted(_changed(self.files(base), self.files(head)))
        return [ChangedFile(path=path, status="modified", added_lines=1, removed_lines=0) for path in paths]

    def diff(self, repository: Path, base: str, head: str, limit_bytes: int) -> str:
        return f"{base}..{head}"[:limit_bytes]

    def _commit(self, files: Files, parents: tuple[str, ...], message: str) -> Commit:
        tree = _digest(sorted(files.items()))
        commit = _digest(tree, parents, message)
        self._trees[tree], self._commits[commit] = files, (tree, parents)
        return Commit(commit=commit, tree=tree)

    def _named(self, commit: str) -> Commit:
        return Commit(commit=commit, tree=self._commits[commit][0])

    def _ancestors(self, commit: str) -> list[str]:
        found, left = list[str](), [commit]
        while left:
            at = left.pop(0)
            if at not in found:
                found.append(at)
                left.extend(self._commits[at][1])
        return found

    def _parted(self, ours: str, theirs: str) -> str:
        behind = self._ancestors(ours)
        shared = [at for at in self._ancestors(theirs) if at in behind]
        return next(at for at in shared if not any(at in self._ancestors(other)[1:] for other in shared))

    def _merged(self, ours: str, theirs: str) -> tuple[Files, tuple[str, ...]]:
        common = self.files(self._parted(ours, theirs))
        mine, other, lost = dict(self.files(ours)), self.files(theirs), list[str]()
        for path in sorted(mine.keys() | other.keys() | common.keys()):
            merged = _merged_text(common.get(path, ""), mine.get(path, ""), other.get(path, ""))
            was, here, there = common.get(path), mine.get(path), other.get(path)
            if there == was or there == here:
                continue
            if here != was and merged is not None and None not in (was, here, there):
                mine[path] = merged
                continue
            if here != was:
                lost.append(path)
            mine.pop(path, None)
            if there is not None:
                mine[path] = there
        return mine, tuple(lost)


def _changed(before: Files, after: Files) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _merged_text(was: str, here: str, there: str) -> str | None:
    """Return both sides' lines where they changed different ones, None where that is not so simple."""
    lines = [text.split("\n") for text in (was, here, there)]
    if len({len(found) for found in lines}) > 1:
        return None
    merged: list[str] = []
    for old, mine, other in zip(*lines, strict=True):
        if mine != old and other not in (old, mine):
            return None
        merged.append(other if mine == old else mine)
    return "\n".join(merged)


class Session:
    """One agent at work. `behave` of its agents decides what it does in a turn."""

    capabilities: tuple[str, ...] = ("load_session",)

    def __init__(self, agents: "ScriptedAgents", request: SessionRequest, session_id: str) -> None:
        self.request = request
        self.session_id = session_id
        self.history = "\n".join(agents.sessions[session_id])
        self._agents = agents
        self.cancelled = threading.Event()
        self.killed = threading.Event()
        self.stopped = False
        self._working = False

    @property
    def files(self) -> Files:
        """The worktree's files, to read and to change."""
        return self._agents.git.workplaces[self.request.cwd]

    def prompt(self, text: str, observer: TurnObserver) -> TurnEnd:
        if self.killed.is_set():
            raise AgentFailed("agent_exited", "it was killed", retryable=True)
        self._agents.prompts.append((self.request.run_id, text))
        self._agents.sessions[self.session_id].append(text)
        self.cancelled.clear()
        ended = self._agents.behave(self, text, observer)
        if self.killed.is_set():
            raise AgentFailed("agent_exited", "it was killed", retryable=True)
        return ended if isinstance(ended, TurnEnd) else TurnEnd(stop_reason="end_turn", message=ended or "")

    def hang(self, *, heeds_cancel: bool = True) -> TurnEnd:
        """Do nothing until the turn is cancelled, or the agent killed."""
        while not self.killed.wait(0.005):
            if heeds_cancel and self.cancelled.is_set():
                return TurnEnd(stop_reason="cancelled", message="")
        raise AgentFailed("agent_exited", "it was killed", retryable=True)

    def cancel(self) -> None:
        self.cancelled.set()

    def stop_processes(self) -> None:
        self.stopped = True

    def continue_processes(self) -> None:
        self.stopped = False

    def kill(self) -> Sequence[int]:
        alive = self in self._agents.alive
        self._agents.alive.discard(self)
        self.killed.set()
        return (4711,) if alive else ()

    def close(self) -> None:
        self.kill()


Behaviour = Callable[[Session, str, TurnObserver], "TurnEnd | str | None"]


def writes(name: str, text: str = "done") -> Behaviour:
    """Return the behaviour of an agent that writes one file."""

    def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        session.files[name] = text

    return behave


def writes_its_part(session: Session, prompt: str, observer: TurnObserver) -> None:
    """Write a file that is named after the part, one more line in each turn."""
    observer.update(AgentUpdate(kind="thought", text="On it."))
    name = f"{session.request.run_id[:8]}.txt"
    turn = prompt.splitlines()[0]
    lines = session.files.get(name, "").splitlines()
    session.files[name] = "\n".join([*lines, turn] if turn not in lines else lines)


class ScriptedAgents:
    """Agents whose sessions outlive their processes, as real ones do."""

    def __init__(self, git: MemoryGit) -> None:
        self.git = git
        git.is_at_work = lambda place: any(s.request.cwd == place and not s.stopped for s in self.alive)
        self.behave: Behaviour = writes_its_part
        self.sessions: dict[str, list[str]] = {}
        #: The run in whose home each of them is.
        self.homes: dict[str, str] = {}
        self.alive: set[Session] = set()
        self.isolation: Literal["bubblewrap", "none"] = "bubblewrap"
        self.prompts: list[tuple[str, str]] = []
        self.opened = 0

    def known(self) -> Sequence[AgentInfo]:
        return [AgentInfo(name="rehearsal", command=("rehearsal",), installed=True, is_default=True)]

    def resolve(self, model_id: str | None) -> str | None:
        return model_id or "rehearsal"

    def open(self, request: SessionRequest) -> Session:
        self.opened += 1
        session_id = request.session_id or f"session-{self.opened}"
        if request.session_id is not None and session_id not in self.sessions:
            raise AgentFailed("session_not_found", session_id, retryable=False)
        self.sessions.setdefault(session_id, [])
        self.homes.setdefault(session_id, request.run_id)
        session = Session(self, request, session_id)
        self.alive.add(session)
        return session

    def forget(self, run_ids: Sequence[str]) -> None:
        for session_id, run_id in list(self.homes.items()):
            if run_id in run_ids:
                self.sessions.pop(session_id, None)
                del self.homes[session_id]

    def prompted(self, run_id: str) -> list[str]:
        """Return the prompts that a run's agents were given."""
        return [text for run, text in self.prompts if run == run_id]


class MemorySignals:
    """Signal files as a set."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], str] = {}

    def write(self, session_id: str, name: str, text: str) -> None:
        self.files[session_id, name] = text

    def clear(self, session_id: str, name: str) -> None:
        self.files.pop((session_id, name), None)


class NoCommands:
    """Commands that nobody runs here."""

    def run(
        self, command: Sequence[str], cwd: Path, timeout_seconds: float, reads: Sequence[Path] = ()
    ) -> CommandResult:
        raise AssertionError("no gate of these projects runs a command")

    def kill(self, cwd: Path) -> None:
        return

    def close(self) -> None:
        return


class TickingClock:
    """A clock that a test does not wait for."""

    def __init__(self) -> None:
        self._ticks = 0
        #: What has gone by meanwhile.
        self.gone_by = timedelta()

    def now(self) -> datetime:
        self._ticks += 1
        return datetime(2026, 6, 7, 21, 9, 45, tzinfo=UTC) + timedelta(seconds=self._ticks) + self.gone_by


class FaultyLog:
    """A log whose n-th append of decided facts is lost, or stored without anybody being told."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.appends = 0
        self.fault_at: int | None = None
        self.stored_all_the_same = False

    def append(self, proposal: Proposal) -> Sequence[Fact]:
        counted = Counted(proposal, self)
        stored = self._log.append(counted)
        if counted.is_faulty:
            raise LogUnavailable("the connection was lost")
        return stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Counted:
    """A proposal that counts when it decides something."""

    def __init__(self, proposal: Proposal, log: FaultyLog) -> None:
        self._proposal = proposal
        self._log = log
        self.is_faulty = False

    def decide(self) -> Append | None:
        append = self._proposal.decide()
        if append is None or all(draft.event.OUTPUT for draft in append.drafts):
            return append
        self._log.appends += 1
        self.is_faulty = self._log.appends == self._log.fault_at
        if self.is_faulty and not self._log.stored_all_the_same:
            raise LogUnavailable("the connection was lost")
        return append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proposal, name)


def facts(log: EventLog) -> Iterator[Fact]:
    """Return everything on a log."""
    position = 0
    while page := log.read(position, 500):
        yield from page
        position = page[-1].position


def texts(files: Mapping[str, str]) -> str:
    """Return all that files hold."""
    return "\n".join(files.values())
