"""
Verify a Steersman log with Python's standard library and `cryptography` alone: nothing of Steersman is imported.

Written from docs/log-format.md and the specifications that it names, and from nothing else. From the folder above this one:

    python -m verifier bundle FILE | store FOLDER | receipt FILE --key VERIFIER-KEY
"""

import argparse
import json
import sys
from pathlib import Path

from .bundles import verify_bundle
from .notes import Unreadable, key_id, read_checkpoint, verifier_key
from .receipts import verify_receipt
from .stores import verify_folder
from .trust import Trust, Verdict, read_topics
from .verify import EXITS, judged


def main() -> int:
    """Verify what the arguments name, print the verdict as a line of JSON, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bundle", "store", "receipt"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--key", action="append", default=[], help="a verifier key that you trust")
    parser.add_argument("--pin", action="append", default=[], type=Path, help="a file with a checkpoint that you kept")
    parser.add_argument("--hmac", action="append", default=[], help="a key of the chain, in hex")
    parser.add_argument("--topics", type=Path, help="docs/topics.txt; without it `is_output` is checked of output only")
    given = parser.parse_args()
    trust = Trust()
    try:
        trust.keys = [verifier_key(key) for key in given.key]
        trust.pins = [read_checkpoint(pin.read_text(encoding="utf-8")) for pin in given.pin]
        trust.hmac_keys = {key_id(secret): secret for secret in map(bytes.fromhex, given.hmac)}
        if given.topics is not None:
            trust.topics = read_topics(given.topics.read_text(encoding="utf-8"))
    except (Unreadable, ValueError, OSError) as error:
        parser.error(str(error))
    if given.what == "receipt" and len(trust.keys) != 1:
        parser.error("a receipt is checked with one --key")
    verdict = run(given.what, given.path, trust)
    print(json.dumps(vars(verdict)))
    return 0 if given.what == "receipt" and verdict.verdict == "steered" else EXITS[verdict.verdict]


def run(what: str, path: Path, trust: Trust) -> Verdict:
    """The verdict on what stands at a path."""
    if what == "bundle":
        return judged(verify_bundle, path, trust)
    if what == "store":
        return judged(verify_folder, path, trust)
    return judged(verify_receipt, path, trust.keys[0])


if __name__ == "__main__":
    sys.exit(main())
