"""The worker's door, field by field: which command may carry what, and the digest that binds it."""

from typing import Literal

import msgspec

from ..rejected import Rejected
from .receipts import payload_hash

WorkerKind = Literal["pause", "resume", "guidance", "redirect", "abort"]
KINDS = ("pause", "resume", "guidance", "redirect", "abort")

#: The most bytes, in UTF-8, that each text may have.
MAX_TEXT_BYTES = 2_048


class InvalidSteeringCommand(Rejected):
    """The command's fields do not fit its kind."""

    code = "invalid_steering_command"
    status = 422


class PayloadMismatch(Rejected):
    """What you confirmed is not what arrived. Nothing was stored: look at the command again."""

    code = "payload_mismatch"


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to one running worker, as it is sent."""

    kind: str
    task_id: str
    guidance: str = ""
    redirect_target: str = ""
    reason: str = ""
    session_id: str = ""
    adapter: str = ""
    worktree: str = ""

    @property
    def text(self) -> str:
        """What is to be said to the worker."""
        return self.guidance or self.redirect_target

    @property
    def payload_hash(self) -> str:
        """The digest over what is asked; who asks, and how it gets there, is no part of it."""
        return payload_hash(
            {
                "kind": self.kind,
                "task_id": self.task_id,
                "guidance": self.guidance,
                "redirect_target": self.redirect_target,
                "reason": self.reason,
            }
        )


def check(command: WorkerCommand) -> WorkerKind:
    """Return the command's kind if its fields fit it. Raises InvalidSteeringCommand with the first rule that is broken."""
    if command.kind not in KINDS:
        raise InvalidSteeringCommand(f"`kind` must be one of {', '.join(KINDS)}.")
    if not command.task_id:
        raise InvalidSteeringCommand("The task id is missing.")
    for name, kind in (("guidance", "guidance"), ("redirect_target", "redirect")):
        given = bool(getattr(command, name))
        if command.kind == kind and not given:
            raise InvalidSteeringCommand(f"A {kind} needs `{name}`.")
        if command.kind != kind and given:
            raise InvalidSteeringCommand(f"`{name}` goes with a {kind} only.")
    if any(part in command.session_id for part in ("/", "\\", "\0")) or command.session_id in (".", ".."):
        raise InvalidSteeringCommand("`session_id` names a session; it cannot be a path.")
    for name in ("guidance", "redirect_target", "reason"):
        if len(getattr(command, name).encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
            raise InvalidSteeringCommand(f"`{name}` has more than {MAX_TEXT_BYTES} bytes.")
    return command.kind
