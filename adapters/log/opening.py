"""Open a log to be written: with the keys that it names, and only if the store holds what was signed last."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from ...application.ports.log import Append, LogUnavailable, Stored, Undecodable
from ...application.ports.outside import Clock
from ...domain.event import Draft, Event
from ...domain.kinds.log import LOG_STREAM, LogKeyRotated, LogOpened
from ..log_format.checkpoint_file import TAIL_BYTES, CheckpointFile, read_notes
from ..log_format.event_codec import EventCodec
from ..log_format.head import FIRST_MAC, Head, Signer
from ..log_format.keys import Keyring, KeysRefused, LogKeys
from ..log_format.merkle import NoHash, edge_root, subtree_root
from ..log_format.signed_note import (
    Checkpoint,
    NoteInvalid,
    base64_of,
    endorsement,
    key_hash,
    parse_checkpoint,
    parse_note,
    sign_text,
    signers,
)
from .recorder import Recorder
from .sealing import Handover, RolledBack, Sealed, Sealing, signer_of
from .stored_log import Opens
from .writing import Writing

CODEC = EventCodec({LogOpened.TOPIC: LogOpened, LogKeyRotated.TOPIC: LogKeyRotated})
#: Who the log's own facts are by.
PRINCIPAL = "log"
PAGE = 500


class NothingToAccept(Exception):
    """The store holds what was signed last: there is no restored backup to accept."""


class Signed(msgspec.Struct, frozen=True):
    """A checkpoint, and which of our keys signed it, in the order of its signatures: the newest last."""

    checkpoint: Checkpoint
    by: tuple[LogKeys, ...]


def sealed_by(ring: Keyring, file: CheckpointFile) -> Opens:
    """
    Return what opens a log with these keys and this file of checkpoints.

    An empty log gets its first fact. A file that is behind the store, because a process died between the two, is
    repaired. If the store is behind the file, or holds another history, the log is opened and refuses every write.
    Opening raises KeysRefused when the log names keys that are not in the ring.
    """

    def opens(recorder: Recorder, clock: Clock) -> Sealing:
        reason = put_back(recorder, ring, file)
        if reason is not None:
            return RolledBack(reason, ring)
        head = recorder.tree_head()
        if head.signer is None:
            if head.edge.size:
                raise KeysRefused("The log holds facts that nobody signed, so no key can vouch for it.")
            _begin(recorder, clock, ring, file)
            head = recorder.tree_head()
        assert head.signer is not None
        sealing = Sealed(ring, head.signer, file, head)
        written = _newest(ring, file).get(head.signer.origin)
        if written is None or written.checkpoint.size < head.edge.size:
            file.publish(head)
        return sealing

    return opens


def put_back(recorder: Recorder, ring: Keyring, file: CheckpointFile) -> str | None:
    """
    Return why the store is not what was signed last; None if it is.

    Raises KeysRefused when keys that are not in the ring have signed more than the store holds.
    """
    # The file first: what is in it was stored before, whoever writes at this moment.
    newest, claimed = _newest(ring, file), _claimed(ring, file)
    head = recorder.tree_head()
    if head.signer is not None:
        _refuse_older_keys(ring, file, head, newest.get(head.signer.origin), claimed.get(head.signer.origin, 0))
    changed = _changed(recorder, head, ring)
    if changed is not None:
        return changed
    accepted = {event.prior_origin for event in log_facts(recorder) if isinstance(event, LogOpened)}
    for checkpoint in (signed.checkpoint for signed in newest.values()):
        if checkpoint.origin in accepted:
            continue
        if head.signer is None or checkpoint.origin != head.signer.origin:
            return f"the store does not know the log {checkpoint.origin}, which signed {checkpoint.size} facts"
        if checkpoint.size > head.edge.size:
            return f"the store holds {head.edge.size} facts, and {checkpoint.size} were signed"
        root, lacks = _root(recorder, checkpoint.size)
        if root is None:
            return lacks
        if root != checkpoint.root:
            return f"the first {checkpoint.size} facts of the store are not those that were signed"
    return None


def _changed(recorder: Recorder, head: Head, ring: Keyring) -> str | None:
    """Return what no backup has: that the store's own parts do not belong together."""
    if head.signer is not None and not _is_signed(head, head.signer, ring):
        return "the head of the store is not what was signed"
    size, first, last = recorder.bounds()
    if first < 1 or last != size:
        return f"the store holds facts from {first} to {last}, and its head vouches for 1 to {size}"
    if head.signer is not None and head.mac != _last_mac(recorder, head.edge.size):
        return "the chain would go on from another MAC than that of the last fact"
    root, lacks = _root(recorder, size)
    return lacks if root is None else None


def _root(recorder: Recorder, size: int) -> tuple[bytes | None, str]:
    """Return the root over the first *size* facts; None, and what is missing, where the store does not have its hashes."""
    try:
        return subtree_root(0, size, recorder.hashes), ""
    except (LookupError, NoHash) as error:
        return None, f"the store does not hold the whole tree of its first {size} facts: {error}"


def _refuse_older_keys(ring: Keyring, file: CheckpointFile, head: Head, ours: Signed | None, claimed: int) -> None:
    if claimed > max(head.edge.size, ours.checkpoint.size if ours else 0):
        raise KeysRefused(
            f"{file.path} has a checkpoint over {claimed} facts of this log that no key in {ring.directory} signed, and "
            f"the store holds {head.edge.size}. Nothing was changed. Put the newest keys there: if the log's keys were "
            "rotated, those that it was put back with are not to sign anything more."
        )


def _claimed(ring: Keyring, file: CheckpointFile) -> dict[str, int]:
    """
    Return the size of the largest checkpoint under each name near the end of the file that may be signed: by a key of ours,
    or by one that we do not have. A line with a wrong signature by our key anybody can have written: it says nothing.
    """
    keys, sizes = ring.all(), dict[str, int]()
    for note in read_notes(file.path, tail=TAIL_BYTES):
        found = parse_checkpoint(note)
        with suppress(NoteInvalid):
            signers(note, {key_hash(found.origin, each.public): each.public for each in keys})
            sizes[found.origin] = max(found.size, sizes.get(found.origin, 0))
    return sizes


def _last_mac(recorder: Recorder, size: int) -> bytes | None:
    return recorder.receipts([size])[size][1] if size else FIRST_MAC


def accept_restore(recorder: Recorder, clock: Clock, ring: Keyring, file: CheckpointFile) -> Sequence[LogOpened]:
    """
    Go on from what the store holds under a new origin; a fact for each history that ends here names what it had signed.

    Several end where the backup is from before an earlier accepted restore. The facts are returned, all of one origin.
    The keys are the newest of those that signed what the store holds and of those that signed what was lost.

    Raises:
        NothingToAccept: the store was not put back.
        KeysRefused: there is no key to sign with, or what the store holds is not what any key signed.
    """
    if put_back(recorder, ring, file) is None:
        raise NothingToAccept
    head, told = recorder.tree_head(), list(log_facts(recorder))
    changed = _changed(recorder, head, ring)
    if changed is not None:
        raise KeysRefused(f"The store was not put back but changed: {changed}. Nothing was stored. Restore a backup.")
    accepted = {event.prior_origin for event in told if isinstance(event, LogOpened)}
    lost = [found for origin, found in _newest(ring, file).items() if origin not in accepted]
    signer, newer = head.signer, _newer(lost, told)
    # Else the same keys: a restore is no occasion on which anybody could put theirs in the place of the log's.
    old = ring.get(signer.signing_id, signer.hmac_id) if signer else newer or ring.newest() or ring.make()
    # One left out would be missed for ever: each later accepted restore would only add the name made by the one before.
    opened, keys = _opened(old, *(signed.checkpoint for signed in lost)), [old]
    facts: list[Event] = [*opened]
    if newer is not None and newer is not old:
        # In the same batch, whose checkpoint both keys sign: nothing under the new name is vouched for by the old alone.
        facts.append(_rotated(opened[0].origin, old, newer))
        keys.append(newer)
    _hand_over(recorder, clock, facts, Handover(signer_of(opened[0].origin, keys[-1]), *keys, after=signer, file=file))
    return opened


def _newer(lost: Sequence[Signed], told: Sequence[Event]) -> LogKeys | None:
    """
    Return the last keys that signed what was lost, if the store does not know of them.

    They took over after the backup was made. The log must not fall back behind that: the keys before may have leaked,
    and been given up for that reason.
    """
    named = {event.signing_key_id for event in told if isinstance(event, LogOpened | LogKeyRotated)}
    signed_by = (keys for signed in reversed(lost) for keys in reversed(signed.by))
    return next((keys for keys in signed_by if keys.signing_id not in named), None)


def rotate_key(recorder: Recorder, clock: Clock, ring: Keyring, file: CheckpointFile) -> LogKeyRotated:
    """
    Give the log new keys, and return the fact that says so; its checkpoint is signed by the old key and the new one.

    Every other process takes the new keys with its next append.
    """
    reason = put_back(recorder, ring, file)
    head = recorder.tree_head()
    if reason is not None or head.signer is None:
        raise KeysRefused(f"The log's keys cannot be rotated: {reason or 'it has none'}.")
    origin = head.signer.origin
    old = ring.get(head.signer.signing_id, head.signer.hmac_id)
    new = ring.make()
    rotated = _rotated(origin, old, new)
    # If we die before the commit, the new keys lie in the ring and nobody uses them; the head names those that count.
    _hand_over(recorder, clock, [rotated], Handover(signer_of(origin, new), old, new, after=head.signer, file=file))
    return rotated


def log_facts(recorder: Recorder) -> Iterator[Event]:
    """Give the facts that the log holds about itself."""
    after = 0
    while rows := recorder.rows("version", LOG_STREAM, after, PAGE):
        for row in rows:
            after += 1
            try:
                yield CODEC.decode(row, {}).event
            except Undecodable:
                continue


def _begin(recorder: Recorder, clock: Clock, ring: Keyring, file: CheckpointFile) -> None:
    """On return the log has its first fact, whoever wrote it."""
    found = ring.newest()
    keys = found or ring.make()
    (opened,) = _opened(keys)
    try:
        _hand_over(recorder, clock, [opened], Handover(signer_of(opened.origin, keys), keys, after=None, file=file))
    except LogUnavailable:
        signer = recorder.tree_head().signer
        if signer is None:
            raise
        # Another process began the log at this moment: with keys of its own, or with ours, which it has found.
        if found is None and signer.signing_id != keys.signing_id:
            ring.forget(keys)


def _opened(keys: LogKeys, *priors: Checkpoint) -> Sequence[LogOpened]:
    """Return the facts that open a log under a new origin: one for each history that ended, or one that names none."""
    origin = f"steersman.local/{uuid4().hex}"
    return [
        LogOpened(
            origin=origin,
            signing_key_id=keys.signing_id,
            hmac_key_id=keys.hmac_id,
            public_key=keys.public_text,
            prior_origin=prior.origin if prior else None,
            prior_size=prior.size if prior else None,
            prior_root=base64_of(prior.root) if prior else None,
        )
        for prior in priors or (None,)
    ]


def _rotated(origin: str, old: LogKeys, new: LogKeys) -> LogKeyRotated:
    return LogKeyRotated(
        signing_key_id=new.signing_id,
        hmac_key_id=new.hmac_id,
        public_key=new.public_text,
        prior_signing_key_id=old.signing_id,
        prior_hmac_key_id=old.hmac_id,
        endorsement=sign_text(endorsement(origin, new.public_text), origin, old.signing),
    )


def _hand_over(recorder: Recorder, clock: Clock, events: Sequence[Event], sealing: Handover) -> None:
    """On return the facts are stored, and the head names the new signer. Raises LogUnavailable if somebody was faster."""
    version = sum(1 for _ in log_facts(recorder))
    append = Append(
        drafts=tuple(Draft(stream=LOG_STREAM, event=event) for event in events),
        expected={LOG_STREAM: version},
        at=clock.now(),
        principal=PRINCIPAL,
        command_id=str(uuid4()),
    )
    (outcome,) = Writing(recorder, CODEC, clock, sealing, lambda _: (), lambda _: Stored(())).commit([append])
    if not isinstance(outcome, Stored):
        raise LogUnavailable("somebody else changed who signs the log at this moment")


def _is_signed(head: Head, signer: Signer, ring: Keyring) -> bool:
    keys = ring.get(signer.signing_id, signer.hmac_id)
    known = {key_hash(signer.origin, keys.public): keys.public}
    try:
        found = parse_checkpoint(head.note)
        return bool(signers(head.note, known)) and found == Checkpoint(
            origin=signer.origin, size=head.edge.size, root=edge_root(head.edge)
        )
    except NoteInvalid:
        return False


def _newest(ring: Keyring, file: CheckpointFile) -> dict[str, Signed]:
    """Return the largest checkpoint of each origin near the end of the file that a key of ours signed; the newest last."""
    keys, newest = ring.all(), dict[str, Signed]()
    for note in read_notes(file.path, tail=TAIL_BYTES):
        found = parse_checkpoint(note)
        ours = {key_hash(found.origin, each.public): each for each in keys}
        try:
            signed = signers(note, {number: each.public for number, each in ours.items()})
            by = tuple(ours[line.key_hash] for line in parse_note(note)[1] if line.key_hash in signed)
        except NoteInvalid:
            continue
        if by and (found.origin not in newest or newest[found.origin].checkpoint.size < found.size):
            newest[found.origin] = Signed(found, by)
    return newest
