"""A verdict as a plan tells it, whatever it was found by."""

from typing import Any

from kvpool_lab.verdict import Verdict


def as_row(verdict: Verdict) -> dict[str, Any]:
    """For programs."""
    return {
        "class": verdict.kind,
        "verdict": verdict.word,
        "saved": round(verdict.saved, 4),
        "reason": verdict.reason,
    }


def as_line(verdict: Verdict) -> str:
    """For people."""
    return f"{verdict.kind or 'all requests'}: {verdict.word}. {verdict.reason[0].upper()}{verdict.reason[1:]}."
