"""Money as people write it, and as facts count it: in millionths."""

from decimal import Decimal

from ..domain.facts.spending import MICROS


def money(micros: int) -> str:
    """Return an amount as a decimal number, with at least two places."""
    whole = f"{Decimal(micros) / MICROS:.6f}"
    kept = whole.rstrip("0")
    return kept.ljust(kept.index(".") + 3, "0")


def micros(amount: str) -> int:
    """Return a decimal number in millionths."""
    return int(Decimal(amount) * MICROS)
