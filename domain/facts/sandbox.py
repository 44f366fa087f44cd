"""What a project lets its agents run in a shell, and what is kept of their output."""

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from ..rejected import Invalid, Rejected
from .agent_output import MAX_OUTPUT_BYTES
from .asking import DESTRUCTIVE, destructive_part

MAX_PATTERNS = 100
MAX_PATTERN_CHARACTERS = 200
MAX_ROOTS = 100
MAX_ROOT_CHARACTERS = 4_096


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy. A run keeps the one that held when it started, whatever its agents write into the settings later."""

    shell_enabled: bool = True
    #: Kept for executors that mount something; agents here see what their user sees.
    allowed_repository_roots: tuple[str, ...] = ()
    #: Parts of a command that only a person may let pass, whatever else is granted.
    destructive_command_patterns: tuple[str, ...] = DESTRUCTIVE
    require_approval_for_all_shell: bool = False
    redact_pii: bool = True
    max_output_bytes: int = MAX_OUTPUT_BYTES

    def why_asked(self, command: str) -> str | None:
        """Return why a person has to let a command pass, None if nobody has to."""
        part = destructive_part(command, self.destructive_command_patterns)
        if part is not None:
            return f"The command matches the destructive pattern {part!r}"
        return "Every command needs an approval in this project" if self.require_approval_for_all_shell else None


class InvalidPolicy(Invalid):
    """The sandbox policy is not valid."""

    code = "sandbox_policy_invalid"


class PolicyUnreadable(Rejected):
    """The repository's settings cannot be understood, so nobody knows what its agents may do. Put a valid policy there."""

    code = "sandbox_policy_unreadable"


def checked(policy: SandboxPolicy) -> SandboxPolicy:
    """Return the policy if it can be kept to. Raises InvalidPolicy."""
    patterns, roots = policy.destructive_command_patterns, policy.allowed_repository_roots
    if len(patterns) > MAX_PATTERNS or any(not p.strip() or len(p) > MAX_PATTERN_CHARACTERS for p in patterns):
        # A blank one would be part of every command.
        limits = f"at most {MAX_PATTERNS}, each of 1 to {MAX_PATTERN_CHARACTERS} characters and not blank"
        raise InvalidPolicy(f"`destructive_command_patterns`: {limits}.")
    if len(roots) > MAX_ROOTS or not all(is_absolute(root) for root in roots):
        raise InvalidPolicy(f"`allowed_repository_roots`: at most {MAX_ROOTS}, each an absolute path.")
    if not 1 <= policy.max_output_bytes <= MAX_OUTPUT_BYTES:
        raise InvalidPolicy(f"`max_output_bytes` must be 1 to {MAX_OUTPUT_BYTES}.")
    return policy


def is_absolute(path: str) -> bool:
    """Return whether this is an absolute path on some system."""
    plain = 0 < len(path) <= MAX_ROOT_CHARACTERS and path.isprintable()
    return plain and (PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute())


def policy_of(settings: Mapping[str, Any]) -> SandboxPolicy:
    """Return the policy that a settings file holds; what it does not say is as by default. Raises PolicyUnreadable."""
    known = {name: settings[name] for name in SandboxPolicy.__struct_fields__ if settings.get(name) is not None}
    try:
        return checked(msgspec.convert(known, SandboxPolicy))
    except (msgspec.ValidationError, InvalidPolicy, RecursionError) as error:
        raise PolicyUnreadable(f"The repository's settings cannot be understood: {error}") from error
