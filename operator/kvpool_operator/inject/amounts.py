"""How an amount of cpu or memory is written, counted in thousandths (`parse_milli`): whole bytes lose nothing by it."""

from kvpool_operator.desired.quantity import format_quantity


def write(resource: str, amount: int) -> str:
    """The shortest spelling of `amount` thousandths: cores for cpu, bytes (rounded up) for all else."""
    if resource != "cpu":
        return format_quantity(-(-amount // 1000))
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
