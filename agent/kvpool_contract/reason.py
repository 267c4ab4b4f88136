"""One reason: what it is made of (the tables stand in reasons and certificate_reasons)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """One row: `word` for machines, `sentence` says what happened, `fix` what a person can do about it."""

    word: str
    sentence: str
    fix: str
