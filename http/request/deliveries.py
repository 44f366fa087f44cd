"""What requests say about where work goes."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ...domain.facts.delivery import Delivery, DeliveryMode
from ...domain.runs.delivering import check_delivery


class DeliveryRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    Where approved work goes. `merge`: into the branch that the run began from. `branch`: onto a new branch of the
    repository, and the one that it began from stays where it is. `push` is refused so far.
    """

    mode: DeliveryMode = "merge"
    branch: (
        Annotated[str, Meta(max_length=255, description="The new branch; null: `delivered/` and the id of the run.")]
        | None
    ) = None
    remote: Annotated[str, Meta(max_length=255, description="Where it is pushed to.")] | None = None


def delivery_of(data: DeliveryRequest | None) -> Delivery | None:
    """Return where work goes as a request says. Raises Invalid, DeliveryUnsupported."""
    if data is None:
        return None
    delivery = Delivery(mode=data.mode, branch=data.branch, remote=data.remote)
    check_delivery(delivery)
    return delivery
