"""
Hurt a service of several replicas in every way that it has to survive, and check what it has kept.

Real replicas, a real PostgreSQL and a real Redis of our own; work by rehearsal agents; corrections at every door; all
from a seed. Afterwards the history is checked: by the auditor, and by invariants of our own. Run it in a checkout, with
what the tests need (`ops/environment test`):

    .venv/bin/python -m steersman.ops.chaos [--seed 1 --seed 2] [--replicas 3] [--orchestrations 30] [--steers 300]
        [--faults 60] [--keep]

Run by root, repositories and workplaces are on small disks of their own, which can be full or read-only.

The seed fixes what is chosen: the plans, the commands, the faults and their order. When each meets the others is up to
the machine, so a seed that failed may have to be run more than once.

Exit code 0: nothing is wrong. On a failure the smallest log that shows it is written, and its path printed.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from .campaign import Campaign, CampaignOptions
from .outside import Postgres, Redis
from .verdict import judge, write_logs

SHOWN = 20


def main() -> int:
    """Run a campaign for each seed; return 0 if no invariant was violated in any."""
    parser = argparse.ArgumentParser(prog="chaos", description="Hurt a service, and check what it has kept.")
    defaults = CampaignOptions()
    parser.add_argument("--replicas", type=int, default=defaults.replicas)
    parser.add_argument("--orchestrations", type=int, default=defaults.orchestrations)
    parser.add_argument("--steers", type=int, default=defaults.steers)
    parser.add_argument("--faults", type=int, default=defaults.faults)
    parser.add_argument("--seed", type=int, action="append", help="may be given several times [default: 1]")
    parser.add_argument("--keep", action="store_true", help="keep data, logs and repositories, also of a success")
    given = parser.parse_args()
    options = CampaignOptions(given.replicas, given.orchestrations, given.steers, given.faults)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed: list[int] = []
    for seed in given.seed or [1]:
        if not run(seed, options, keep=given.keep):
            failed.append(seed)
    print(f"violated with the seeds {failed}" if failed else "zero violations", flush=True)
    return 1 if failed else 0


def run(seed: int, options: CampaignOptions, *, keep: bool) -> bool:
    """Run one campaign and tell of it; return whether nothing is wrong."""
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix=f"steersman-chaos-{seed}-"))

    def note(words: str) -> None:
        print(f"seed {seed}: {time.monotonic() - began:6.1f} s  {words}", flush=True)

    note(f"{options} in {home}")
    with Postgres() as postgres, Redis() as cache:
        campaign = Campaign(seed, options, postgres, cache, home)
        if not campaign.disks:
            note("no disk is full or read-only here: only root can mount one")
        try:
            client = campaign.run(note)
            facts, violations = judge(campaign, client, note)
        finally:
            campaign.replicas.close()
            for disk in campaign.disks:
                if keep:  # Whoever looks at it unmounts it.
                    note(f"{disk.path} stays mounted")
                else:
                    disk.end()
    note(
        f"{len(campaign.runs)} orchestrations, {campaign.verbs.total()} corrections acknowledged "
        f"({campaign.refused.total()} refused, {client.retries} repeated), {campaign.faults.counts.total()} faults, "
        f"{len(facts)} facts, {len(campaign.subscribers)} subscribers: {len(violations)} violations"
    )
    note(f"corrections: {dict(campaign.verbs.most_common())}")
    note(f"faults: {dict(campaign.faults.counts.most_common())}")
    if violations:
        for violation, path in zip(violations[:SHOWN], write_logs(home, seed, facts, violations), strict=False):
            print(f"VIOLATED {violation.invariant}: {violation.message}\n    {path}", flush=True)
        print(f"    refused: {dict(campaign.refused.most_common(20))}\n    hurt in vain: {campaign.faults.failed}")
    if not violations and not keep:
        shutil.rmtree(home, ignore_errors=True)
    return not violations


if __name__ == "__main__":
    sys.exit(main())
