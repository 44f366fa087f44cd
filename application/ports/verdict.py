"""What an audit comes to: one verdict, one exit code, and the first bad position if there is one."""

from collections.abc import Mapping
from typing import Literal

import msgspec

Label = Literal["clean", "steered", "open", "tampered", "unchecked"]

#: What a command ends with. Truncation is tampering; `unchecked` is only what could not be looked at, and `open` what is
#: sound as far as it goes, without anything that says where it ends.
EXIT_CODES: Mapping[Label, int] = {"clean": 0, "steered": 10, "open": 30, "tampered": 20, "unchecked": 30}
#: What only an HMAC key can check.
CHAIN = "the chain of MACs"
#: How many steering steps a verdict lists; `steering` counts them all.
MAX_STEPS = 1_000


ON_A_PIN = "a checkpoint that you kept"
ON_A_KEY = "a key that you gave: whoever holds it can still have written another history, which only a checkpoint shows"
ON_ITSELF = (
    "the log's own word: it names the key itself, so whoever made all of it anew under another key would not be found."
    " Bring a checkpoint that you kept (--pin) or a key (--key)"
)


def rests_on(has_pin: bool, has_key: bool) -> str:
    """Return whose word an audit rests on."""
    return ON_A_PIN if has_pin else ON_A_KEY if has_key else ON_ITSELF


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing that is not as it was signed."""

    reason: str
    #: The first bad position. None: what is wrong belongs to no fact.
    position: int | None = None
    #: The last position that it may be, where hashes narrow it down no further.
    last: int | None = None
    field: str = ""
    expected: str = ""
    actual: str = ""


class SteeringStep(msgspec.Struct, frozen=True, kw_only=True):
    """One correction that was received, with its receipt."""

    position: int
    run: str
    directive_id: str
    verb: str
    source: str
    principal: str
    payload_hash: str
    leaf_hash: str
    receipt_hash: str
    #: The last status that the audited facts give it.
    status: str


class AuditVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and what came of it."""

    #: Whose word all that follows rests on, as `rests_on` says it; empty where nothing was looked at.
    rests_on: str = ""
    verdict: Label
    #: The run that was audited; None: the whole log.
    run: str | None = None
    #: How many facts were looked at, and the size of the signed tree that they were proved in.
    facts: int = 0
    size: int = 0
    #: A run's facts are complete up to this root_sequence; what came later is not part of what was audited.
    complete_to: int | None = None
    #: Nobody vouches that the run has no more facts than these: the bundle holds no tree head for its end, or a pin is newer.
    open_at_end: bool = False
    #: The run's length, signed by the log in a note of its own, for whoever wants to keep it.
    tree_head: str | None = None
    #: How many texts were erased since; that is no tampering.
    erased: int = 0
    origin: str = ""
    #: The keys that signed, each by the name that the log gives it, the newest last.
    signing_key_ids: tuple[str, ...] = ()
    #: Whether a checkpoint or key that the auditor brought vouches for it; else the log's own facts name the key.
    pinned: bool = False
    #: How many entries of the HMAC chain were checked, of `facts`: those by the keys that were brought, 0 without any.
    chained: int = 0
    #: What it holds that could not be checked, by its name in what was audited.
    not_checked: tuple[str, ...] = ()
    #: How many lines of the file of checkpoints were passed over, because nobody signed them whose key the log names.
    ignored_checkpoints: int = 0
    #: How many rows of views were compared with what the facts fold into; None: none were at hand.
    views: int | None = None
    steering: int = 0
    steps: tuple[SteeringStep, ...] = ()
    finding: Finding | None = None

    @property
    def exit_code(self) -> int:
        """What a command ends with."""
        return EXIT_CODES[self.verdict]
