"""Writes the parts of docs/ that are made from code: the table of reasons in docs/operations.md.

    python hack/write_docs.py

tests/unit/test_docs.py fails while the page says something else.
"""

from pathlib import Path

from kvpool_contract.reasons import REASONS

OPERATIONS = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"


def with_reasons(page: str) -> str:
    """The page with the table between its marks made anew."""
    rows = ["| reason | what happened | what to do |", "|---|---|---|"]
    rows += [f"| `{r.word}` | {r.sentence} | {r.fix} |" for r in REASONS.values()]
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *rows, END + after])


if __name__ == "__main__":
    OPERATIONS.write_text(with_reasons(OPERATIONS.read_text()))
