"""What a verifier has of its own, what it found, and the checks that a bundle and a store have in common."""

from dataclasses import dataclass, field

from .facts import OUTPUT, Log, Tampered
from .notes import Checkpoint, Key, Unreadable, read_checkpoint


@dataclass
class Trust:
    """Keys and checkpoints from elsewhere, HMAC keys by their ids, and the topics of which it is known what they are."""

    keys: list[Key] = field(default_factory=list)
    pins: list[Checkpoint] = field(default_factory=list)
    hmac_keys: dict[str, bytes] = field(default_factory=dict)
    topics: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(OUTPUT, True))


@dataclass
class Verdict:
    """What was found, and where; how many MACs were checked; what else a reader should hear."""

    verdict: str
    position: int | None = None
    what: str = ""
    macs: int = 0
    told: list[str] = field(default_factory=list)


def read_topics(text: str) -> dict[str, bool]:
    """The topics of docs/topics.txt, and which of them are output."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {words[0]: words[1:] == ["output"] for words in lines}


def judge(log: Log, trust: Trust, told: list[str], *, is_open: bool = False) -> Verdict:
    """The verdict on a log in which nothing is wrong."""
    if trust.hmac_keys and not log.macs:
        raise Unreadable("no fact was chained by the HMAC key that was given")
    name = "steered" if log.receipts else "open" if is_open else "clean"
    return Verdict(name, macs=log.macs, told=told)


def is_signed(log: Log, point: Checkpoint) -> bool:
    """Whether a note is signed by the key in force, in the name of the log."""
    return log.key is not None and point.origin == log.key.name and log.key in point.note.signers({log.key})


def check_signed(log: Log, point: Checkpoint) -> None:
    """A note is signed by the key in force."""
    if not is_signed(log, point):
        raise Tampered(None, "a note is not signed by the key in force")


def check_keys(log: Log, trust: Trust) -> None:
    """Each key that is trusted signed this log."""
    if any(key not in log.named for key in trust.keys):
        raise Tampered(None, "a key that is trusted did not sign this log")


def check_pin(log: Log, pin: Checkpoint) -> None:
    """A pin is of this log, and signed by a key that the log names: in the pin's name, whatever name it had first."""
    if pin.origin not in {key.name for key in log.named} | log.kept.keys():
        raise Tampered(None, "a pin is of another log")
    if not pin.note.signers({Key(pin.origin, key.public) for key in log.named}):
        raise Tampered(None, "a pin is signed by no key of this log")


class WholeLog:
    """A whole log against the roots that were signed: the points between, the pins, and the end."""

    def __init__(self, log: Log, pins: list[Checkpoint]) -> None:
        self.log = log
        self.agreed = self.pinned = 0
        self._pins = sorted(pins, key=lambda pin: pin.size)

    def pass_fact(self) -> None:
        """Compare with the pins that are of the facts so far."""
        while self._pins and self._pins[0].size <= self.log.last:
            self._compare_pin(self._pins.pop(0))

    def pass_point(self, point: Checkpoint) -> bool:
        """Compare with a checkpoint of the facts so far; False for one that nobody signed who may."""
        if (point.origin, point.size) != (self.log.key.name if self.log.key else "", self.log.last):
            return True
        if not is_signed(self.log, point):
            return False
        self._compare(point, self.agreed)
        self.agreed = point.size
        return True

    def finish(self, end: Checkpoint, trust: Trust) -> None:
        """Check the end, the keys that are trusted, and the pins that are left."""
        if self.log.last < end.size:
            raise Tampered(self.log.last + 1, "facts are missing at the end")
        if not self.log.last:
            raise Unreadable("there are no facts")
        check_signed(self.log, end)
        self._compare(end, self.agreed)
        check_keys(self.log, trust)
        for pin in self._pins:
            self._compare_pin(pin)

    def _compare_pin(self, pin: Checkpoint) -> None:
        check_pin(self.log, pin)
        kept = self.log.kept.get(pin.origin, self.log.end)
        if pin.size > kept:
            raise Tampered(kept + 1, "facts that were pinned are missing")
        self._compare(pin, self.pinned)
        self.pinned = pin.size

    def _compare(self, point: Checkpoint, sound: int) -> None:
        if self.log.tree.root(point.size) != point.root:
            raise Tampered(sound + 1, f"the first {point.size} facts are not those that were signed")


def read_end(text: object) -> Checkpoint:
    """The checkpoint that everything is proved in; one that is none was put in its place."""
    try:
        return read_checkpoint(text)
    except Unreadable as error:
        raise Tampered(None, str(error)) from error
