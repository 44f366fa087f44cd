"""Whether work can be delivered where somebody wants it to go."""

from ..facts.delivery import Delivery
from ..git import may_be_begun_from
from ..rejected import Invalid


class DeliveryUnsupported(Invalid):
    """Work cannot be pushed yet. Deliver it onto a branch, and push that yourself."""

    code = "delivery_unsupported"


def check_delivery(delivery: Delivery) -> None:
    """Return if work can go there. Raises Invalid, DeliveryUnsupported."""
    if delivery.mode == "push":
        raise DeliveryUnsupported
    if delivery.remote is not None:
        raise Invalid("`remote` is for what is pushed.")
    if delivery.mode == "merge" and delivery.branch is not None:
        raise Invalid("`merge` goes into the branch that the run began from. For a new one say `mode` `branch`.")
    if delivery.branch is not None and not may_be_begun_from(delivery.branch):
        raise Invalid(f"No branch for people can have the name {delivery.branch!r}.")
