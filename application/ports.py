"""What the use cases need from outside. Each port says what holds when a call returns."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..domain.event import Draft, Fact
from ..domain.git import Commit
from ..domain.workers import Fingerprint
from .verdict import Verdict

# The event log


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """One request that must take effect at most once, and the answer that every repetition gets."""

    principal: str
    method: str
    path: str
    key: str
    #: SHA-256 of the request's body, in hex.
    body_digest: str
    #: The HTTP status and body of the first answer.
    status: int
    answer: bytes


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The stored answer of an earlier request with the same idempotency key."""

    body_digest: str
    status: int
    answer: bytes
    #: The position of the last fact that the request appended.
    position: int


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are stored together or not at all."""

    drafts: tuple[Draft, ...]
    #: For each stream that the decision read or writes: the version that it saw (0: no fact yet).
    #: Output streams are written without one.
    expected: Mapping[str, int]
    at: datetime
    principal: str
    #: Unique for each command: a repeated append after a lost acknowledgement is recognised by it.
    command_id: str
    traceparent: str | None = None
    idempotency: Idempotency | None = None


class Conflict(Exception):
    """A stream is no longer at the version that the decision saw. Nothing was stored: decide again on a fresh fold."""


class AlreadyAnswered(Exception):
    """A request with this idempotency key was stored before. Nothing was stored now: replay `answered`."""

    def __init__(self, answered: Answered) -> None:
        super().__init__("a request with this idempotency key was stored before")
        self.answered = answered


class LogUnavailable(Exception):
    """The event log cannot be written or read now. What was acknowledged is kept; send the command again later."""


class LogRolledBack(LogUnavailable):
    """
    The store holds less than was signed: it was put back to an earlier state. Nothing is stored until somebody accepts
    that with `steersman audit accept-restore`.
    """


class Undecodable(Exception):
    """A stored fact of a known topic cannot be understood. Let go of its run; read on after `position`."""

    def __init__(self, position: int, run: str | None, reason: str) -> None:
        super().__init__(f"the fact at position {position} cannot be decoded: {reason}")
        self.position = position
        self.run = run
        self.reason = reason


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a fact is known by to whoever does not trust the store. Digests are 64 hex digits."""

    position: int
    #: The fact's index in the RFC 6962 tree over the log: its position less one.
    leaf_index: int
    leaf_hash: str
    #: The MAC of the fact's entry in the chain, which covers every entry before it; empty in a log that nobody signs.
    receipt_hash: str


class LogKey(msgspec.Struct, frozen=True, kw_only=True):
    """Who signs the log now."""

    origin: str
    signing_key_id: str
    hmac_key_id: str
    #: `origin+hash+base64`, as tools for signed notes take it; empty when the key is not to be known from here.
    verifier_key: str


class InclusionProof(msgspec.Struct, frozen=True, kw_only=True):
    """That a leaf is in the tree of `size` leaves: hashes in base64, the leaf's sibling first."""

    index: int
    size: int
    leaf_hash: str
    root: str
    hashes: tuple[str, ...]


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True):
    """That a smaller tree is what a larger one begins with: hashes in base64, as RFC 6962 orders them."""

    old: int
    new: int
    old_root: str
    new_root: str
    hashes: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A fact with everything that shows, to somebody who has nothing of ours but the public key, that it is in the log."""

    receipt: Receipt
    #: The stored bytes, whose leaf hash is in the tree.
    envelope: bytes
    proof: InclusionProof
    #: The signed checkpoint that the proof is for; empty in a log that nobody signs.
    checkpoint: str
    #: The same as a tlog-proof@v1 file.
    tlog_proof: str


class OutOfRange(Exception):
    """The log has no tree of that size, or no leaf there."""


class LogProofs(Protocol):
    """What the log shows to whoever does not trust it. None of it is secret."""

    def receipts(self, positions: Sequence[int]) -> Mapping[int, Receipt]:
        """Return the receipts of these facts, by position; there is none for a position that has no fact."""
        ...

    def evidence(self, position: int) -> Evidence:
        """Return a fact and its proof in the newest checkpoint. Raises OutOfRange."""
        ...

    def checkpoint(self) -> str:
        """Return the newest checkpoint, a signed note; empty in a log that nobody signs."""
        ...

    def key(self) -> LogKey | None:
        """Return who signs the log, None if nobody does."""
        ...

    def inclusion(self, index: int, size: int) -> InclusionProof:
        """Return the proof that leaf *index* is in the tree of the first *size* leaves. Raises OutOfRange."""
        ...

    def consistency(self, old: int, new: int) -> ConsistencyProof:
        """Return the proof that the tree of *old* leaves is what the one of *new* leaves begins with. Raises OutOfRange."""
        ...

    def audit(self, root: str) -> Verdict:
        """Return what an auditor finds in the facts of a coordinator's tree."""
        ...


class EventLog(LogProofs, Protocol):
    """The one append-only log. What it has once returned, it returns for ever, byte for byte."""

    def append(self, append: Append) -> Sequence[Fact]:
        """
        Store the drafts as consecutive facts; on return they are durable and visible to every reader.

        A reader that has seen position N has seen, or can read, every fact below N.

        Raises:
            Conflict: an expected version is not the stream's.
            AlreadyAnswered: the idempotency row exists; compare its body_digest.
            LogUnavailable: the store cannot be reached; whether the facts are stored is known on the
                next append with the same command_id, which then answers the facts that are stored.
        """
        ...

    def read(self, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """
        Return facts of the whole log in position order, those greater than *after*.

        Here and in the reads below, facts end before the first one that cannot be decoded: only an empty
        answer says that there are no more.

        Raises:
            Undecodable: the very first fact after *after* cannot be decoded.
        """
        ...

    def read_stream(self, stream: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return a stream's facts in version order, those with a version greater than *after*."""
        ...

    def read_run(self, run: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return one run's facts, output included, with a run_sequence greater than *after*."""
        ...

    def read_tree(self, root: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return the non-output facts of a coordinator's tree with a root_sequence greater than *after*."""
        ...

    def head(self) -> int:
        """Return the position of the last durable fact, 0 if there is none."""
        ...

    def run_head(self, run: str) -> int:
        """Return the run_sequence of the run's last fact, 0 if there is no such run."""
        ...

    def answered(self, principal: str, method: str, path: str, key: str) -> Answered | None:
        """Return the stored answer for an idempotency key, if it is younger than 24 hours."""
        ...

    def erase_texts(self, runs: Sequence[str], *, output_only: bool = False, before: datetime | None = None) -> int:
        """Forget the words, and their salts, of these runs for good; return how many texts were erased."""
        ...


class Wakeups(Protocol):
    """Hints that the log has grown. A lost hint costs latency, never work: every waiter also polls."""

    def announce(self, position: int) -> None:
        """Tell every waiter that the log has reached *position*. Never blocks, never raises."""
        ...

    def wait(self, after: int, timeout_seconds: float) -> int:
        """Return the newest announced position, as soon as it is greater than *after* or the time is over."""
        ...


class Clock(Protocol):
    """The time, for people to read. Nothing is ordered by it."""

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        ...


# Git


class RepositoryUnusable(Exception):
    """
    The directory cannot serve as a project's repository.

    `code` is one of workspace_missing, not_a_repository, bare_repository, no_commit, unborn_branch, detached_head,
    unsupported_repository (SHA-256, reftable or an extension that the adapter does not know).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class GitConflict(Exception):
    """A ref is at neither the old nor the new value of a prepared move: somebody else moved it. Nothing was changed."""


class CommitFailed(Exception):
    """The worktree could not be committed; its files are as they were."""


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """A child's work, to be taken into the integration branch."""

    subtask_id: int
    branch: str
    commit: str


class PathConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Paths on which a later child's version won over what was integrated before it; the other side is kept at `ref`."""

    branch: str
    paths: tuple[str, ...]
    ref: str


class Integrated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an integration."""

    commit: str
    tree: str
    has_changes: bool
    conflicts: tuple[PathConflict, ...] = ()


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that differs between two trees. `status` is added, modified or deleted."""

    path: str
    status: str
    added_lines: int
    removed_lines: int
    is_binary: bool = False


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a comparison. `content` is None for a binary or a deleted file."""

    path: str
    #: added, modified, deleted or unchanged
    status: str
    diff: str
    content: str | None
    is_binary: bool


class TreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One folder or file of a tree; `status` and the line counts are null where it does not differ."""

    path: str
    is_folder: bool
    #: added, modified or deleted
    status: str | None = None
    added_lines: int | None = None
    removed_lines: int | None = None


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch and its tip."""

    name: str
    commit: str


class WorktreeGone(Exception):
    """There is no such worktree."""


class SettingsUnreadable(Exception):
    """The settings that a repository holds cannot be understood, or not be written."""


class WorktreeBusy(Exception):
    """The worktree's files changed under every look at them. Look again later."""


class MergeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an attempt to merge into the originating branch came to.

    `state` is merged (commit set), blocked (nothing moved, may be tried again; reason says why) or
    conflicted (nothing moved; conflicting_paths names the files that a person must resolve).
    """

    state: str
    commit: str | None = None
    #: Where the branch stood when this was found out.
    old: str | None = None
    reason: str | None = None
    conflicting_paths: tuple[str, ...] = ()


class RepositoryState(msgspec.Struct, frozen=True, kw_only=True):
    """A usable repository: its real path, the branch that is checked out, and that branch's tip."""

    path: Path
    branch: str
    tip: Commit


class Repositories(Protocol):
    """
    Git, as the runs need it. Every method may be repeated after a crash at any point inside it and then
    ends with the same commits, refs and files. No call touches a branch or checkout that it does not name.
    """

    def inspect(self, path: Path) -> RepositoryState:
        """Return the repository's state. Raises RepositoryUnusable."""
        ...

    def tip(self, repository: Path, branch: str) -> Commit:
        """Return a branch's tip. Raises RepositoryUnusable (workspace_missing, not_a_repository, no_commit)."""
        ...

    def obstacle(self, repository: Path, branch: str) -> str | None:
        """
        Return why a merge into *branch* would be blocked now, looking only: repository_dirty or
        operation_in_progress where it is checked out; None if nothing stands in the way.
        """
        ...

    def ensure_worktree(self, repository: Path, worktree: Path, branch: str, base: str) -> None:
        """Make *branch* (at *base* if it is new) and a worktree that has it checked out, or find both as they are."""
        ...

    def commit_worktree(
        self, repository: Path, worktree: Path, branch: str, parent: str, at: datetime, message: str
    ) -> Commit:
        """
        Commit everything that is changed in the worktree on top of *parent* and move *branch* from *parent* to it.

        The commit is a function of the files, parent, time and message, so a redo makes the same one. Without a
        change nothing is committed and *parent* is returned. Raises CommitFailed, GitConflict.
        """
        ...

    def reset_worktree(self, repository: Path, worktree: Path, branch: str, commit: str) -> None:
        """Put branch and files back to *commit*; what was not committed is gone."""
        ...

    def fingerprint(self, repository: Path, worktree: Path) -> Fingerprint:
        """
        Return what the worktree holds now, changing nothing: the tree that `commit_worktree` would commit, and a digest
        over every file in it, ignored ones too: SHA-256 over sorted lines of relative path, NUL, SHA-256 of the
        content in hex, LF; without `.git`, links and what cannot be read. Both are empty if there is no worktree.
        """
        ...

    def remove_worktree(self, repository: Path, worktree: Path, branch: str | None) -> None:
        """Remove the worktree, its admin entry and, if named, its branch. Absent ones are no fault."""
        ...

    def integrate(
        self, repository: Path, base: str, contributions: Sequence[Contribution], at: datetime, message: str
    ) -> Integrated:
        """
        Merge the contributions onto *base* in the given order, moving no ref but refs/steersman/conflicts/*.

        Clean hunks of both sides are kept; only on conflicting paths does the later child's version win, and the
        other side stays reachable under the conflict's ref.
        """
        ...

    def point_branch(self, repository: Path, branch: str, old: str | None, new: str) -> None:
        """Move *branch* from *old* (None: it does not exist) to *new*; done already is fine. Raises GitConflict."""
        ...

    def prepare_merge(
        self, repository: Path, branch: str, approved: Commit, at: datetime, message: str
    ) -> MergeOutcome:
        """
        Find out, moving nothing, what merging *approved* into *branch* gives: `merged` with the commit that the
        branch would move to (*approved* itself when that is a fast-forward, the present tip when it is contained).
        """
        ...

    def merge(self, repository: Path, branch: str, old: str, new: str) -> MergeOutcome:
        """
        Move *branch* from *old* to *new*, with the files of a clean checkout of it, if there is one.

        A dirty checkout or an operation in progress there blocks the move: then neither branch nor files move.
        A branch that is at *new* already is `merged`; one that is elsewhere is `blocked` with reason head_moved.
        """
        ...

    # Where *head* is a path, the comparison is with that worktree's files as they are now, ignored ones left out; that
    # raises WorktreeGone, WorktreeBusy. Links are never followed, so nothing outside of it is read.

    def changed_files(self, repository: Path, base: str, head: str | Path) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits, ordered by path."""
        ...

    def file(self, repository: Path, base: str, head: str | Path, path: str) -> FileView | None:
        """
        Return one file as a comparison of two commits; None if neither has it. Never reads outside the trees.

        What is too long to show is cut, and its last line says so.
        """
        ...

    def tree(self, repository: Path, base: str, head: str | Path) -> Sequence[TreeEntry]:
        """Return every folder and file of *head* by path, each with how it differs from *base*; deleted files too."""
        ...

    def content(self, repository: Path, commit: str, path: str) -> bytes | None:
        """Return a file's bytes (a link's target), None if the commit has no such file."""
        ...

    def parent(self, repository: Path, commit: str) -> str | None:
        """Return a commit's first parent, None for one that has none."""
        ...

    def branches(self, repository: Path) -> Sequence[Branch]:
        """Return the repository's branches, by name."""
        ...

    def settings(self, repository: Path) -> Mapping[str, Any]:
        """Return what the settings file in the repository's checkout says. Raises SettingsUnreadable."""
        ...

    def write_settings(self, repository: Path, changed: Mapping[str, Any]) -> None:
        """Make the settings file say this too; it is on disk whole or not at all. Raises SettingsUnreadable."""
        ...

    def diff(self, repository: Path, base: str, head: str, limit_bytes: int) -> str:
        """Return the unified diff between two commits, cut at *limit_bytes* with a line that says so."""
        ...


# Agents


class AgentFailed(Exception):
    """
    The agent could not do its turn. `code` is the public word (agent_not_installed, agent_start_timeout,
    agent_exited, agent_protocol_error, agent_turn_failed, session_not_found, agent_processes_unruly); `retryable` says whether the same may work later.
    """

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that agents.toml, or the product itself, names."""

    name: str
    command: tuple[str, ...]
    #: Whether the command is on PATH.
    installed: bool
    is_default: bool


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent process is started for."""

    #: `agent` or `agent/model…`.
    model_id: str
    #: The child run that the process belongs to; becomes STEERSMAN_RUN_ID.
    run_id: str
    cwd: Path
    #: The session to load; None for a new one.
    session_id: str | None = None


class PermissionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The agent asks whether it may call a tool."""

    request_id: str
    tool_name: str
    #: The tool's input, as the JSON string that was received.
    tool_input: str
    kind: str = "other"


class AgentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """
    Something that the agent reported while it worked.

    `kind` is message (text), thought (text), tool_call (call_id, title, text = its input as JSON), tool_result (call_id,
    text, failed), plan (text), usage (input_tokens, output_tokens), stderr (text).
    """

    kind: str
    text: str = ""
    call_id: str = ""
    title: str = ""
    failed: bool = False
    input_tokens: int = 0
    output_tokens: int = 0


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `stop_reason` is the protocol's: end_turn, cancelled, refusal, max_tokens, max_turn_requests."""

    stop_reason: str
    #: What the agent said in this turn, at most 256 KiB of it.
    message: str


class TurnObserver(Protocol):
    """Who is told what happens in a turn. Called from one thread, in order; a slow observer slows the agent down."""

    def update(self, update: AgentUpdate) -> None:
        """Take a report."""
        ...

    def permission(self, asked: PermissionAsked) -> bool:
        """Block until it is decided whether the tool may be called."""
        ...

    def question(self, request_id: str, question: str) -> str | None:
        """Block until the question is answered; None if it will not be."""
        ...


class AgentSession(Protocol):
    """One agent process under its keeper, with one open session."""

    @property
    def session_id(self) -> str:
        """The session's id, as the agent gave it."""
        ...

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the agent said it can do, from: load_session, resume_session, elicitation, image, audio, embedded_context."""
        ...

    @property
    def history(self) -> str:
        """The text of the session's earlier turns as `session/load` replayed it; empty for a new session."""
        ...

    def prompt(self, text: str, observer: TurnObserver) -> TurnEnded:
        """Run one turn to its end. Raises AgentFailed when the agent dies, breaks the protocol or ends it with an error."""
        ...

    def cancel(self) -> None:
        """Ask for the end of the turn (session/cancel). Returns at once; the turn ends through `prompt`."""
        ...

    def stop_processes(self) -> None:
        """On return every process of the agent, detached ones too, is stopped (SIGSTOP) or gone."""
        ...

    def continue_processes(self) -> None:
        """On return every stopped process of the agent runs again."""
        ...

    def kill(self) -> Sequence[int]:
        """On return no process of the agent, detached ones too, is alive. Returns the pids that were killed."""
        ...

    def close(self) -> None:
        """End the agent: ask first, then kill. On return nothing of it is alive."""
        ...


class Agents(Protocol):
    """The coding agents that this installation knows."""

    def known(self) -> Sequence[AgentInfo]:
        """Return every agent that can be named, the default first."""
        ...

    def resolve(self, model_id: str | None) -> str | None:
        """Return the full model id for what a caller gave (None: the default agent), or None if nobody knows it."""
        ...

    def open(self, request: SessionRequest) -> AgentSession:
        """
        Start an agent under a keeper and open, or load, its session.

        Raises AgentFailed. `session_not_found` as its code means that the agent no longer has the session to load.
        """
        ...


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a command came to. `state` is exited (with exit_code), timed_out, not_found, not_started or interrupted;
    `output` is the end of what it wrote.
    """

    state: str
    output: str
    exit_code: int | None = None


class Commands(Protocol):
    """Commands of a project's own."""

    def run(self, command: Sequence[str], cwd: Path, timeout_seconds: float) -> CommandResult:
        """Run the command to its end, or kill it after the time. On return nothing that it started is alive."""
        ...

    def close(self) -> None:
        """Kill every command that runs; their callers are told that they were interrupted."""
        ...


class SignalFiles(Protocol):
    """Files that an agent's own tools may look for: `<data>/signals/<session>/PAUSE` and `SHUTDOWN`."""

    def write(self, session_id: str, name: str, text: str) -> None:
        """Write the file. A session id that is no plain file name stands under its digest."""
        ...

    def clear(self, session_id: str, name: str) -> None:
        """Remove the file, if it is there."""
        ...


# Views


class ViewRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a view: its key, the group it is listed in, its place there, and its bytes."""

    key: str
    group: str
    order: int
    body: bytes


class Views(Protocol):
    """Read models: rows, and the position up to which they are folded, always stored together."""

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        ...

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        ...

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        ...

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        ...


Announce = Callable[[int], None]
