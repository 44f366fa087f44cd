"""Where a run's work goes, as clients are shown it."""

import msgspec

from ..domain.facts.delivery import Delivery, DeliveryMode


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """Where approved work goes: into the originating branch, or onto a new branch; null: one named after the run."""

    mode: DeliveryMode = "merge"
    branch: str | None = None
    remote: str | None = None


def delivery_view(delivery: Delivery | None, run_id: str | None = None) -> DeliveryView:
    """Return where work goes as it is shown: of a run with the branch that it has."""
    if delivery is None:
        return DeliveryView()
    branch = delivery.branch_of(run_id) if run_id is not None and delivery.mode != "merge" else delivery.branch
    return DeliveryView(mode=delivery.mode, branch=branch, remote=delivery.remote)
