"""`steersman audit`: export, verify and classify, without the service and without its keys; and the keeper's two commands."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from ...adapters.audit.bundle import Bundle, write_bundle
from ...adapters.audit.log import audit
from ...adapters.audit.store import RunFacts, WholeLog
from ...adapters.clock import SYSTEM_CLOCK
from ...adapters.log.opening import accept_restore, put_back, rotate_key
from ...adapters.log.proofs import StoredProofs, hmac_keys_of
from ...adapters.log.receipt import MAX_RECEIPT_BYTES, check_receipt, receipt_of_directive
from ...adapters.log_format.entry import Unreadable
from ...adapters.log_format.signed_note import NoteInvalid, parse_checkpoint
from ...application.ports.verdict import CHAIN, AuditVerdict, Finding
from ..output import note, plain, print_json
from ..refused import Refused
from ..serving.data_dir import alone_in
from ..settings import data_option, json_option, read_settings
from .audit_sources import (
    audit_data,
    check_pin,
    counting,
    drop_views,
    held_keys,
    keeping,
    read_hmac_keys,
    read_pin,
    reading,
)
from .audit_watch import watch
from .whole_file import STANDARD_OUTPUT, writing

SHOWN_STEPS = 20
Command = TypeVar("Command", bound=Callable[..., Any])

A_FILE = click.Path(path_type=Path, dir_okay=False)


def key_option(words: str) -> Callable[[Command], Command]:
    """Return the option that names whom an auditor trusts."""
    return click.option("--key", "keys", multiple=True, metavar="KEY", help=words)


def pin_option(words: str) -> Callable[[Command], Command]:
    """Return the option that names what an auditor kept."""
    return click.option("--pin", "pins", multiple=True, type=A_FILE, help=words)


@click.group()
def command() -> None:
    """
    Prove that the log is what was signed.

    verify and classify end with 0: clean, 10: steered, 20: tampered, 30: could not be checked, or nothing says where the run
    ends (open). receipt ends with 0 when the receipt holds.
    """


@command.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--all", "whole", is_flag=True, help="Every fact of the log.")
@click.option(
    "--output", "-o", type=A_FILE, default=STANDARD_OUTPUT, help="The file to write [default: standard output]."
)
@pin_option("A checkpoint that you kept, for the bundle to lead to; one at most.")
@data_option
def export(run_id: str | None, whole: bool, output: Path, pins: Sequence[Path], data: Path | None) -> None:
    """
    Write a bundle that proves a coordinator run, or the whole log, to whoever has it and nothing else.

    That a run has no more facts than its bundle, the log's key says: without it the bundle is open at its end.
    """
    if (run_id is None) != whole or len(pins) > 1:
        raise click.UsageError("Name a run or --all, and at most one --pin.")
    settings = read_settings(data)
    pin = read_pin(pins[0]) if pins else None
    with reading(settings) as recorder, writing(output) as file, counting("facts", None) as progress:
        if pin is not None:
            check_pin(pins[0], pin, recorder)
        ring = held_keys(settings)
        source = (
            WholeLog(recorder, settings.checkpoints)
            if run_id is None
            else RunFacts(recorder, run_id.lower(), pin, ring=ring)
        )
        try:
            facts = write_bundle(source, file, progress)
        except Unreadable as error:
            raise Refused(str(error)) from error
        if facts == 0:
            raise Refused(f"There is no coordinator run {run_id}, so the bundle proves nothing.")
    note(f"{facts} facts")
    if isinstance(source, RunFacts) and not source.is_ended:
        note(f"Nobody vouches that the run has no more: the keys of the log are not in {settings.keys}.")


@command.command()
@click.argument("bundle", required=False, type=A_FILE)
@data_option
@pin_option("A checkpoint that you kept; may be given many times.")
@key_option("The log's verifier key, from when you trusted it; may be given many times.")
@click.option("--witness", help="A witness's verifier key: every pin has to be cosigned by it.")
@click.option("--hmac-key", "hmac_keys", multiple=True, type=A_FILE, help="A key of the chain, to check that too.")
@json_option
def verify(
    bundle: Path | None,
    data: Path | None,
    pins: Sequence[Path],
    keys: Sequence[str],
    witness: str | None,
    hmac_keys: Sequence[Path],
    as_json: bool,
) -> NoReturn:
    """
    Check a bundle, which needs nothing else, or with --data a data directory and its store.

    Without a pin or a key of yours the verdict rests on the log's own word. Nothing is written, wherever the store lies.
    """
    if bundle is not None and data is not None:
        raise click.UsageError("Name either a bundle or --data.")
    if witness is not None and not pins:
        raise click.UsageError("--witness says who cosigned a --pin.")
    with _unchecked(as_json):
        kept, chain = [read_pin(pin, witness) for pin in pins], read_hmac_keys(hmac_keys)
        if bundle is None:
            verdict = audit_data(read_settings(data), kept, keys, chain)
        else:
            with counting("facts", _size(bundle)) as progress:
                verdict = audit(Bundle(bundle), pins=kept, keys=keys, hmac_keys=chain, progress=progress)
    _end(verdict, as_json)


@command.command()
@click.argument("run_id", metavar="RUN")
@data_option
@key_option("The log's verifier key, from when you trusted it.")
@json_option
def classify(run_id: str, data: Path | None, keys: Sequence[str], as_json: bool) -> NoReturn:
    """Say whether a run was clean, steered or tampered with, and list its corrections. Every fact of the log is looked at."""
    settings = read_settings(data)
    with _unchecked(as_json), reading(settings) as recorder, counting("facts", None) as progress:
        chain = hmac_keys_of(held_keys(settings))
        source = RunFacts(recorder, run_id.lower())
        verdict = audit(source, keys=keys, hmac_keys=chain, needs_key=False, progress=progress)
    _end(verdict, as_json)


@command.command()
@click.argument("wanted", metavar="DIRECTIVE|FILE")
@click.option("--key", help="Check FILE, a receipt as JSON, with this verifier key (GET /api/log/key), offline.")
@data_option
@json_option
def receipt(wanted: str, key: str | None, data: Path | None, as_json: bool) -> None:
    """
    Print a directive's receipt as JSON; or with --key check one in a file.

    It ends with 0 when the receipt holds, with 20 when it does not, and with 30 when it is none.
    """
    if key is not None:
        verdict = _receipt_in(Path(wanted), key)
        # A receipt is there to be proved: that somebody steered is no news, and would end a script that checks its steps.
        _end(verdict, as_json, 0 if verdict.verdict == "steered" else verdict.exit_code)
    with reading(read_settings(data)) as recorder:
        try:
            print_json(receipt_of_directive(StoredProofs(recorder), recorder, wanted))
        except (LookupError, Unreadable) as error:
            raise Refused(f"There is no receipt of {wanted}: {error}") from error


command.add_command(watch)


@command.command("rotate-key")
@data_option
def rotate(data: Path | None) -> None:
    """Give the log new keys; a running service goes on with them. The old ones stay in the directory, for audits."""
    with keeping(read_settings(data)) as (recorder, ring, file):
        rotated = rotate_key(recorder, SYSTEM_CLOCK, ring, file)
    note(f"The log is signed by {rotated.signing_key_id} from here on, no longer by {rotated.prior_signing_key_id}.")


@command.command("accept-restore")
@data_option
def accept(data: Path | None) -> None:
    """Go on from a backup that was put back, while nobody serves: under a new name, with a fact that says what was lost."""
    settings = read_settings(data)
    # A process that serves has looked at the store already, and would go on refusing what is accepted here.
    with keeping(settings) as (recorder, ring, file), alone_in(settings.data):
        if put_back(recorder, ring, file) is not None:
            # First of all: with what accepting adds, the log may be as long again as it was, and a view that has folded
            # what is lost would pass for one of this log.
            drop_views(settings)
        opened = accept_restore(recorder, SYSTEM_CLOCK, ring, file)
        signer = recorder.tree_head().signer
    note(f"The log goes on as {opened[0].origin}.")
    for ended in opened:
        if ended.prior_origin is not None:
            note(f"Before, {ended.prior_origin} had signed {ended.prior_size} facts.")
    if signer is not None:
        note(f"It is signed by {signer.signing_id}. If that key has leaked: steersman audit rotate-key")
    note("Tokens that were revoked after the backup was made work again, unless you kept the tokens.db of before.")
    note("Look, and revoke them once more: steersman token list")
    note("Then start every replica again." if settings.database else "Then start the service again.")


def _receipt_in(path: Path, key: str) -> AuditVerdict:
    try:
        with path.open("rb") as file:
            return check_receipt(file.read(MAX_RECEIPT_BYTES), key)
    except OSError as error:
        return AuditVerdict(verdict="unchecked", finding=Finding(reason=f"{path} cannot be read: {error.strerror}"))


def _size(bundle: Path) -> int | None:
    """Return how many facts a bundle of the whole log has, for a bar; whether that is so is found out later."""
    try:
        opening = Bundle(bundle).opening()
        return parse_checkpoint(opening.checkpoint).size if opening.run is None else None
    except (Unreadable, NoteInvalid):
        return None


@contextmanager
def _unchecked(as_json: bool) -> Generator[None]:
    """End with the verdict `unchecked` when the block is refused what it needs."""
    try:
        yield
    except Refused as error:
        _end(AuditVerdict(verdict="unchecked", finding=Finding(reason=error.message)), as_json)


def _end(verdict: AuditVerdict, as_json: bool, code: int | None = None) -> NoReturn:
    if as_json:
        print_json(verdict)
    else:
        for line in in_lines(verdict):
            click.echo(line)
    sys.exit(verdict.exit_code if code is None else code)


def in_lines(verdict: AuditVerdict) -> list[str]:
    """Return a verdict for people: whose word it rests on comes before what it is."""
    lines = [f"This rests on {verdict.rests_on}."] if verdict.rests_on else []
    lines += [verdict.verdict, *_finding_lines(verdict.finding)]
    covered = f"size {verdict.size}"
    if verdict.run and not verdict.open_at_end:
        covered = f"complete to {verdict.complete_to} at size {verdict.size}"
    elif verdict.run:
        covered = f"1 to {verdict.complete_to} without a hole at size {verdict.size}, open at its end"
    lines.append(f"  {verdict.facts} facts, {covered}, {verdict.erased} texts erased")
    if verdict.chained:
        others = "; the others are by keys that you did not bring" if verdict.chained < verdict.facts else ""
        lines.append(f"  {verdict.chained} of {verdict.facts} entries of the chain checked{others}")
    lines += [f"  {name} was not checked: only the log and its HMAC key can tell" for name in verdict.not_checked]
    if verdict.ignored_checkpoints:
        lines.append(
            f"  {verdict.ignored_checkpoints} checkpoints were passed over: no key that the log names signed them"
        )
    receipt = "receipt" if CHAIN not in verdict.not_checked else "receipt, not checked,"
    for step in verdict.steps[:SHOWN_STEPS]:
        words = f"{step.verb} by {step.principal} ({step.source}): {step.status}, {receipt} {step.receipt_hash}"
        lines.append(f"  {step.position:>8}  {plain(words)}")
    if verdict.steering > SHOWN_STEPS:
        lines.append(f"  and {verdict.steering - SHOWN_STEPS} more corrections")
    return lines


def _finding_lines(finding: Finding | None) -> list[str]:
    if finding is None:
        return []
    upto = f" to {finding.last}" if finding.last not in (None, finding.position) else ""
    shown = (
        ("position", f"{finding.position}{upto}" if finding.position is not None else ""),
        ("field", finding.field),
        ("expected", finding.expected),
        ("actual", finding.actual),
    )
    return [f"  {plain(finding.reason)}", *(f"  {name:<12} {plain(value)}" for name, value in shown if value)]
