"""Where a run's approved work goes."""

from typing import Literal

import msgspec

DeliveryMode = Literal["merge", "branch", "push"]


class Delivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    Where approved work goes: `merge` into the originating branch; `branch`: onto a new branch, and the originating one
    stays where it is.
    """

    mode: DeliveryMode = "merge"
    #: The new branch; null: one that is named after the run.
    branch: str | None = None
    remote: str | None = None

    def branch_of(self, run_id: str) -> str:
        """Return the new branch that a run's work goes onto."""
        return self.branch or f"{DELIVERED}{run_id}"


#: What the names of new branches begin with that nobody has chosen.
DELIVERED = "delivered/"
