"""What the log says about itself: who signs it, under which name, and what it goes on from."""

from typing import ClassVar

from ..event import Event

#: The stream of these facts. It belongs to no run.
LOG_STREAM = "log"


class LogOpened(Event, frozen=True, kw_only=True):
    """
    A log begins to be signed: with its first fact, or after a restored backup was accepted.

    The `prior` members name what had been signed before the restore, of which the facts behind this one's place are
    lost for good; a log that begins has none. Where several histories end, because the backup is from before an earlier
    restore, there is one such fact for each, all of one origin.
    """

    TOPIC: ClassVar[str] = "log.opened"

    origin: str
    #: SHA-256 of the public key, and of the HMAC key: 32 hex digits of each.
    signing_key_id: str
    hmac_key_id: str
    #: The Ed25519 public key in base64.
    public_key: str
    prior_origin: str | None = None
    prior_size: int | None = None
    #: The root in base64.
    prior_root: str | None = None


class LogKeyRotated(Event, frozen=True, kw_only=True):
    """Other keys sign from here on; the checkpoint that covers this fact is signed by the old and the new one."""

    TOPIC: ClassVar[str] = "log.key_rotated"

    signing_key_id: str
    hmac_key_id: str
    public_key: str
    prior_signing_key_id: str
    prior_hmac_key_id: str
    #: A note by the old key that names the new one, so that nobody without the old key hands the log over.
    endorsement: str
