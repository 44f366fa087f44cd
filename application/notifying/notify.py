"""
Tell receivers what waits and what ended: each in order, at least once, from where it stopped.

What is to be told is read from the view of notices, behind the number of the last one that a receiver has; that number is kept
once the receiver has said that it heard. So if we crash anywhere, it is sent again under the same id, and nothing is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Thread
from uuid import uuid4

import msgspec
import structlog

from ...domain.projects.webhook_facts import DisabledReason, Webhook
from ...domain.projects.webhooks import WebhookNotFound, disable_webhook
from ...domain.rejected import ProjectNotFound, Rejected
from ...projections import notices, webhooks
from ...projections.notices import NUMBERS_PER_FACT, Notice
from ..commands.change_project import change_project
from ..ports.log import EventLog
from ..ports.notices import COMMAND_ID, Attempt, Post, Receiver, Receivers, Tell
from ..ports.outside import Clock, Views, Wakeups
from ..writer.caller import service
from . import retries
from .cloud_event import cloud_event, headers

#: How long a notice may wait for a wake-up that was lost.
POLL_SECONDS = 1.0
#: How long what just happened may take to become a notice, so that one look finds all that came together.
TICK_SECONDS = 0.2
#: Far longer than one attempt takes; so long a receiver waits for others when its process dies.
HOLD_SECONDS = 120.0
PAGE = 100
#: How many receivers are told at once; each may take its time.
MOST_AT_ONCE = 8
#: A receiver that was kept for a webhook that was never stored is forgotten after this time.
FORGET_SECONDS = 3_600.0

log = structlog.get_logger(__name__)


class Notifier:
    """Sends what is to be told, in threads of its own, until it is stopped."""

    def __init__(
        self,
        facts: EventLog,
        views: Views,
        receivers: Receivers,
        post: Post,
        clock: Clock,
        draw: Callable[[], float],
        *,
        tell: Tell | None = None,
        alone: bool = True,
    ) -> None:
        """*alone*: no other process sends, so whatever is held was held by one that is dead."""
        self._log = facts
        self._views = views
        self._receivers = receivers
        self._post = post
        self._clock = clock
        self._draw = draw
        self._tell = tell
        self._alone = alone
        self._holder = str(uuid4())
        self._origin = key.origin if (key := facts.key()) else "unsigned"
        self._stopping = Event()
        self._lock = Lock()
        self._busy: set[str] = set()
        self._pool = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="notices")
        self._thread = Thread(target=self._run, name="notices", daemon=True)
        self._wakeups: Wakeups | None = None

    # In threads of its own

    def start(self, wakeups: Wakeups) -> None:
        """Begin; what is not told yet is told from now on."""
        self._wakeups = wakeups
        self._thread.start()

    def stop(self) -> None:
        """Break off what is being sent. On return nothing is sent any more, and other processes may go on."""
        self._stopping.set()
        self._post.close()
        if self._tell is not None:
            self._tell.close()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        try:
            self._receivers.let_go(self._holder)
        except Exception as error:  # noqa: BLE001 - whoever takes over waits a little longer
            log.warning("receivers are held a little longer", error=str(error))

    def _run(self) -> None:
        announced, begun = 0, False
        while not self._stopping.is_set():
            try:
                if not begun:
                    self.begin()
                    begun = True
                for receiver, webhook in self.due():
                    self._submit(receiver, webhook)
                assert self._wakeups is not None
                announced = max(announced, self._wakeups.wait(announced, POLL_SECONDS))
            except Exception:  # whatever a store does, the poll goes on
                log.exception("notices could not be looked for")
                self._stopping.wait(POLL_SECONDS)
            self._stopping.wait(TICK_SECONDS)

    def _submit(self, receiver: Receiver, webhook: Webhook | None) -> None:
        with self._lock:
            self._busy.add(receiver.id)

        def deliver() -> None:
            try:
                self.deliver(receiver.id, webhook)
            except Exception:  # it is found again by the poll
                log.exception("notices could not be sent", receiver=receiver.id)
                self._stopping.wait(POLL_SECONDS)
            finally:
                with self._lock:
                    self._busy.discard(receiver.id)

        self._pool.submit(deliver)

    # Step by step

    def begin(self) -> None:
        """Know the command, if there is one: from now on it is told, or from where it was when there last was one."""
        if self._alone:
            for receiver in self._receivers.every():
                self._receivers.hold(receiver.id, self._holder, float("inf"), 0.0)
        if self._tell is None:
            if self._alone:  # else another process may have one
                self._receivers.remove(COMMAND_ID)
            return
        told = _last_of(self._log.head())
        self._receivers.add(Receiver(id=COMMAND_ID, url="", secrets=(), created_at=self._now(), told=told))

    def due(self) -> Sequence[tuple[Receiver, Webhook | None]]:
        """Return the receivers for which there is something to be sent, or looked at, now. Forget those of no webhook."""
        known = self._receivers.every()
        if not known:
            return ()
        enabled = {row.webhook_id: row for row in self._webhooks()}
        now, found = self._now(), list[tuple[Receiver, Webhook | None]]()
        with self._lock:
            busy = frozenset(self._busy)
        for receiver in known:
            webhook = enabled.get(receiver.id)
            if receiver.id in busy:
                continue
            if receiver.id == COMMAND_ID:
                is_due = self._tell is not None and now >= receiver.next_try and self._has_more(receiver.told)
            elif webhook is None:
                self._forget(receiver, now)
                continue
            elif webhook.enabled_position != receiver.enabled_position:
                is_due = True
            else:
                is_due = webhook.enabled and now >= receiver.next_try and self._has_more(receiver.told)
            if is_due:
                found.append((receiver, webhook))
        return found

    def deliver(self, receiver_id: str, webhook: Webhook | None) -> None:
        """Send what is to be told to one receiver until it has everything, one try fails, or another process holds it."""
        now = self._now()
        if not self._receivers.hold(receiver_id, self._holder, now, now + HOLD_SECONDS):
            return
        receiver = self._receivers.get(receiver_id)
        if receiver is None:
            return
        receiver = self._heeded(receiver, webhook)
        while not self._stopping.is_set() and self._now() >= receiver.next_try:
            page = self._after(receiver.told)
            for notice in page:
                kept = self._webhook(receiver.id)
                if receiver.id != COMMAND_ID and (kept is None or not kept.enabled):
                    page = ()  # it was disabled or removed meanwhile
                    break
                if not _concerns(notice, kept):
                    receiver = msgspec.structs.replace(receiver, told=notice.number)
                    continue
                receiver, goes_on = self._send(receiver, notice)
                if not goes_on:
                    return
            if not self._receivers.save(receiver, self._holder) or not page:
                return

    def _send(self, receiver: Receiver, notice: Notice) -> tuple[Receiver, bool]:
        """Send one notice; return how the receiver stands now, and whether the next one may be sent."""
        now = self._now()
        if self._stopping.is_set() or not self._receivers.hold(receiver.id, self._holder, now, now + HOLD_SECONDS):
            return receiver, False
        body = cloud_event(notice, self._origin)
        outcome = self._attempt(receiver, notice, body, now)
        if outcome.state != "delivered" and self._stopping.is_set():
            return receiver, False  # broken off by us: that is no failure of theirs
        # If we crash here, it is sent again under the same id.
        receiver = self._after_try(receiver, notice, outcome)
        is_kept = self._receivers.save(receiver, self._holder)
        if outcome.state == "delivered":
            return receiver, is_kept
        self._say(receiver, notice, outcome)
        if receiver.id != COMMAND_ID and is_kept:
            if outcome.state == "gone":
                self._disable(notice, receiver, "gone")
            elif retries.gives_up(receiver.failures):
                self._disable(notice, receiver, "gave_up")
        return receiver, False

    def _attempt(self, receiver: Receiver, notice: Notice, body: bytes, now: float) -> Attempt:
        if receiver.id == COMMAND_ID:
            assert self._tell is not None
            return self._tell.tell(body)
        return self._post.send(receiver.url, headers(notice, body, receiver.secrets, now), body)

    def _after_try(self, receiver: Receiver, notice: Notice, outcome: Attempt) -> Receiver:
        now = self._now()
        receiver = msgspec.structs.replace(receiver, last_outcome=outcome.word, last_try=now)
        if outcome.state == "delivered":
            return msgspec.structs.replace(receiver, told=notice.number, failures=0, next_try=0.0)
        failures = receiver.failures + 1
        if receiver.id == COMMAND_ID:
            wait = retries.command_wait_seconds(failures, self._draw())
        else:
            wait = retries.wait_seconds(failures, self._draw(), outcome.retry_after_seconds)
        return msgspec.structs.replace(receiver, failures=failures, next_try=now + wait)

    def _heeded(self, receiver: Receiver, webhook: Webhook | None) -> Receiver:
        """Return the receiver as it stands once the last fact that enabled it is heeded."""
        if webhook is not None and webhook.enabled_position != receiver.enabled_position:
            told = _last_of(webhook.enabled_position) if webhook.skip else receiver.told
            receiver = msgspec.structs.replace(
                receiver, told=told, enabled_position=webhook.enabled_position, failures=0, next_try=0.0
            )
        # A log that was put back to a backup is behind what was told: what comes now has lower numbers.
        last = _last_of(self._log.head())
        return msgspec.structs.replace(receiver, told=min(receiver.told, last))

    def _webhook(self, webhook_id: str) -> Webhook | None:
        body = self._views.get(webhooks.VIEW.name, webhook_id)
        return None if body is None else webhooks.VIEW.decode(body)

    def _disable(self, notice: Notice, receiver: Receiver, reason: DisabledReason) -> None:
        try:
            change_project(
                notice.project_id,
                lambda project: disable_webhook(project, receiver.id, reason, receiver.last_outcome),
                service(str(uuid4())),
                self._log,
                self._clock,
            )
        except (ProjectNotFound, WebhookNotFound):
            pass  # nobody wants it any more
        except Rejected as refused:  # the next try comes to it again
            log.warning("a webhook could not be disabled", webhook=receiver.id, error=str(refused))

    def _say(self, receiver: Receiver, notice: Notice, outcome: Attempt) -> None:
        log.warning(
            "a notice was not delivered",
            receiver=receiver.id,
            project=notice.project_id,
            notice=notice.kind,
            outcome=outcome.word,
            failures=receiver.failures,
            next_try_in_seconds=round(receiver.next_try - self._now()),
        )

    def _forget(self, receiver: Receiver, now: float) -> None:
        # Its row is stored before the fact that adds it, and the view is behind the log: so not at once.
        if now - receiver.created_at > FORGET_SECONDS:
            self._receivers.remove(receiver.id)

    def _has_more(self, told: int) -> bool:
        return bool(self._views.list(notices.VIEW.name, notices.GROUP, before=-told, limit=1))

    def _after(self, told: int) -> Sequence[Notice]:
        rows = self._views.list(notices.VIEW.name, notices.GROUP, before=-told, limit=PAGE)
        return [notice for row in rows if (notice := notices.VIEW.decode(row.body).notice) is not None]

    def _webhooks(self) -> Iterable[Webhook]:
        before: int | None = None
        view = webhooks.VIEW
        while rows := self._views.list(view.name, webhooks.GROUP, before=before):
            yield from (view.decode(row.body) for row in rows)
            before = rows[-1].order

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _last_of(position: int) -> int:
    """Return the number behind every notice of the facts up to this position."""
    return position * NUMBERS_PER_FACT + NUMBERS_PER_FACT - 1


def _concerns(notice: Notice, webhook: Webhook | None) -> bool:
    """Return whether a notice is for this webhook, or, without one, for the command of this installation."""
    if webhook is None:
        return notice.webhook_id is None
    if notice.webhook_id is not None:
        return notice.webhook_id == webhook.webhook_id
    return notice.project_id == webhook.project_id and notice.kind in webhook.kinds
