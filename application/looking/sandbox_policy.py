"""Read and replace the policy that a repository's settings hold."""

from pathlib import Path

import msgspec

from ...domain.facts.sandbox import PolicyUnreadable, SandboxPolicy, checked, policy_of
from ..ports.git import Repositories, SettingsUnreadable


def read_policy(repositories: Repositories, repository: Path) -> SandboxPolicy:
    """Return the policy that holds now; the default one where nothing is said. Raises PolicyUnreadable."""
    try:
        return policy_of(repositories.settings(repository))
    except SettingsUnreadable as unreadable:
        # No guess: the default may allow what somebody meant to forbid.
        raise PolicyUnreadable(f"The repository's settings cannot be understood: {unreadable}.") from unreadable


def replace_policy(repositories: Repositories, repository: Path, policy: SandboxPolicy) -> SandboxPolicy:
    """Store the policy, whole, and return it. Raises InvalidPolicy, PolicyUnreadable."""
    policy = checked(policy)
    try:
        repositories.write_settings(repository, msgspec.to_builtins(policy, builtin_types=()))
    except SettingsUnreadable as unwritable:
        raise PolicyUnreadable(f"The policy was not stored: {unwritable}.") from unwritable
    return policy
