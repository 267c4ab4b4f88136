"""Figures as people read them, on the page of a pool and in the command's table."""

NOTHING = "-"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else NOTHING


def size(count: float) -> str:
    """Bytes."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def seconds(count: float) -> str:
    """Seconds, in three digits."""
    return f"{count * 1000:.3g} ms" if abs(count) < 1 else f"{count:.3g} s"
