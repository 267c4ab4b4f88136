"""Amounts of cpu and memory, counted in thousandths: cpu is written in them, and whole bytes lose nothing by it."""

from kvpool_operator.desired.quantity import format_quantity, parse_quantity


def milli(quantity: object) -> int:
    """Thousandths of a quantity; raises QuantityError."""
    text = str(quantity) if isinstance(quantity, str | int | float) else ""
    return parse_quantity(text[:-1]) if text.endswith("m") else 1000 * parse_quantity(quantity)


def write(resource: str, amount: int) -> str:
    """The shortest spelling of `amount` thousandths: cores for cpu, bytes (rounded up) for all else."""
    if resource != "cpu":
        return format_quantity(-(-amount // 1000))
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
