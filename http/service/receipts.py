"""What the log shows of itself: receipts that verify offline, checkpoints, keys and proofs. None of it is secret."""

import re
from typing import Annotated, Any, TypeAlias

from litestar import Request, Response, get
from litestar.params import FromPath, QueryParameter

from ...application.ports.proofs import ConsistencyProof, InclusionProof, LogKey, OutOfRange
from ...application.ports.verdict import AuditVerdict
from ...application.queries.receipt_detail import ReceiptDetail, receipt_detail
from ...domain.facts.directive import directive_stream
from ...domain.rejected import Invalid, NotFound
from ...domain.steering.steering import DirectiveNotFound
from ..request.problems import Unavailable, refusals
from ..request.reading import Reads, only_once

LARGEST = 2**53
_QUALITY = re.compile(r"\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE)

Size: TypeAlias = Annotated[int, QueryParameter(ge=1, le=LARGEST, description="How many facts the tree covers.")]
Index: TypeAlias = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="The leaf: a fact's position less one.")]
From: TypeAlias = Annotated[
    int, QueryParameter(name="from", ge=1, le=LARGEST, description="The size of the smaller tree.")
]
To: TypeAlias = Annotated[int, QueryParameter(name="to", ge=1, le=LARGEST, description="The size of the larger tree.")]


class NoSuchTree(NotFound):
    """The log has no such leaf, or has not had that size yet."""

    code = "no_such_tree"


class NotSigned(Unavailable):
    """Nobody signs this log, so it has no checkpoint and no key."""

    code = "log_not_signed"


@get("/api/receipts/{directive:str}", sync_to_thread=True, responses=refusals(403, 404))
def show_receipt(
    request: Request[Any, Any, Any], directive: FromPath[str], reading: Reads
) -> Response[ReceiptDetail | str]:
    """Return a directive's receipt as JSON, or with `Accept: text/plain` as a tlog-proof@v1 file."""
    log = reading.services.log
    first = log.read_stream(directive_stream(directive), limit=1) if "\0" not in directive else ()
    if not first or first[0].root is None:
        raise DirectiveNotFound
    reading.access.run(reading.principal, first[0].root)
    position = first[0].position
    with reading.services.findings.watching(position):
        try:
            evidence = log.evidence(position)
        except OutOfRange as cut:
            raise LookupError(f"the fact at position {position} is behind the end of the signed tree") from cut
    if _wants_text(",".join(request.headers.getall("accept", []))):
        return Response(evidence.tlog_proof, media_type="text/plain")
    payload_hash: str = getattr(first[0].event, "payload_hash", "")
    return Response(receipt_detail(directive, payload_hash, evidence), media_type="application/json")


@get("/api/runs/{run_id:str}/audit", sync_to_thread=True, responses=refusals(403, 404))
def audit_run(run_id: FromPath[str], reading: Reads) -> AuditVerdict:
    """
    Audit the facts of a coordinator's tree: clean, steered (with every correction) or tampered (with the first bad
    position). Whoever does not trust this service exports a bundle and verifies it elsewhere.
    """
    verdict = reading.services.log.audit(reading.access.run(reading.principal, run_id).root)
    if verdict.verdict == "tampered":
        found = verdict.finding
        reason = found.reason if found else "an audit found the log tampered with"
        reading.services.findings.damaged(reason, found.position if found else None)
    return verdict


@get("/api/log/checkpoint", sync_to_thread=True, media_type="text/plain", responses=refusals())
def show_checkpoint(reading: Reads) -> str:
    """Return the newest checkpoint: the size and root of the whole log, as a C2SP signed note."""
    note = reading.services.log.checkpoint()
    if not note:
        raise NotSigned
    return note


@get("/api/log/key", sync_to_thread=True, responses=refusals())
def show_key(reading: Reads) -> LogKey:
    """Return who signs the log now. Whoever verifies should have the key from elsewhere, or keep it from the first time."""
    key = reading.services.log.key()
    if key is None:
        raise NotSigned
    return key


@get("/api/log/proof/inclusion", sync_to_thread=True, responses=refusals(404))
def prove_inclusion(request: Request[Any, Any, Any], reading: Reads, index: Index, size: Size) -> InclusionProof:
    """Prove that a leaf is in the tree over the first `size` facts (RFC 6962, section 2.1.1)."""
    only_once(request, "index", "size")
    try:
        with reading.services.findings.watching():
            return reading.services.log.inclusion(index, size)
    except OutOfRange as error:
        raise NoSuchTree from error


@get("/api/log/proof/consistency", sync_to_thread=True, responses=refusals(404))
def prove_consistency(request: Request[Any, Any, Any], reading: Reads, old: From, new: To) -> ConsistencyProof:
    """Prove that the tree over the first `to` facts goes on from the one over the first `from` (section 2.1.2)."""
    only_once(request, "from", "to")
    if old > new:
        raise Invalid("`from` is the size of the smaller tree.")
    try:
        with reading.services.findings.watching():
            return reading.services.log.consistency(old, new)
    except OutOfRange as error:
        raise NoSuchTree from error


def _wants_text(accept: str) -> bool:
    """Return whether an `Accept` header would rather have text than JSON; whoever wants neither gets JSON."""
    text, json = _wish(accept, "text/plain"), _wish(accept, "application/json")
    return text[0] > 0 and text > json


def _wish(accept: str, media_type: str) -> tuple[float, int, int]:
    """
    Return how much a header asks for a media type, as what to compare: its quality, then how exactly it is named, then
    how early. The most exact range says it (RFC 9110, section 12.5.1), so that `q=0` refuses what `*/*` would take.
    """
    exactness = {"*/*": 1, f"{media_type.partition('/')[0]}/*": 2, media_type: 3}
    found = (0.0, 0, 0)
    for place, one in enumerate(accept.split(",")):
        name, *parameters = one.split(";")
        exact = exactness.get(name.strip().lower(), 0)
        if exact > found[1]:
            quality = next((float(q[1]) for part in parameters if (q := _QUALITY.fullmatch(part))), 1.0)
            found = (quality, exact, -place)
    return found
