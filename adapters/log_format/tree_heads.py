"""Tree heads: what the log signs, when it is asked, about how many facts a coordinator's tree has at a size of the log."""

import msgspec

from .head import Head
from .keys import KeysRefused, Ring
from .merkle import HASH_BYTES, edge_root
from .signed_note import NoteInvalid, base64_of, bytes_of, decimal, parse_note, sign_text

#: What follows the log's origin in the first line. No checkpoint begins so, hence none can be taken for a tree head.
KIND = "/tree-head@v1"
LINES = 5


class TreeHead(msgspec.Struct, frozen=True, kw_only=True):
    """In the log of *origin*, of *size* facts with that *root*, the tree of *run* has *length* facts and no more."""

    origin: str
    run: str
    length: int
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The lines that are signed."""
        return f"{self.origin}{KIND}\n{self.run}\n{self.length}\n{self.size}\n{base64_of(self.root)}\n"


def parse_tree_head(note: str) -> TreeHead:
    """Return the tree head of a signed note, nothing of it verified. Raises NoteInvalid."""
    lines = parse_note(note)[0].removesuffix("\n").split("\n")
    if len(lines) != LINES or not lines[0].endswith(KIND) or not lines[1]:
        raise NoteInvalid("a tree head has five lines, of which the first says what it is")
    root = bytes_of(lines[4])
    if len(root) != HASH_BYTES:
        raise NoteInvalid("a root has 32 bytes")
    return TreeHead(
        origin=lines[0].removesuffix(KIND),
        run=lines[1],
        length=decimal(lines[2]),
        size=decimal(lines[3]),
        root=root,
    )


def sign_tree_head(ring: Ring, head: Head, run: str, length: int) -> str | None:
    """
    Return the signed tree head of *run* at the log's *head*, None where its keys are not at hand.

    Whoever asks for it has compared every fact up to the head with what was signed: what is signed here is believed.
    """
    signer = head.signer
    if signer is None or "\n" in run:
        return None
    try:
        keys = ring.get(signer.signing_id, signer.hmac_id)
    except KeysRefused:
        return None
    found = TreeHead(origin=signer.origin, run=run, length=length, size=head.edge.size, root=edge_root(head.edge))
    return sign_text(found.text, signer.origin, keys.signing)
