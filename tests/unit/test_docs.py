"""Pages that are made from code say what the code says, and the guarantees name tests that exist."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "hack"))

import pool_schema  # noqa: E402
import write_docs  # noqa: E402

from kvpool_contract.miss_reasons import MISS_REASONS  # noqa: E402

# words of other tables for which a request may miss as well
ALSO_MISSES = (
    "paused", "probe_pending", "probe_mismatch", "groups_unsupported", "draft_missing", "not_authorised",
    "store_failed", "store_unreachable", "not_attached",
)  # fmt: skip


PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_page_is_of_a_table_and_has_its_columns(page: Path) -> None:
    """What an empty line has cut off is shown as it is written."""
    prose = "".join(page.read_text().split("```")[::2])
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n?)+", prose, re.MULTILINE)]
    assert [table[0] for table in tables if not re.fullmatch(r"\|[-|]+\|", "".join(table[1:2]))] == []
    assert [row for table in tables for row in table if columns(row) != columns(table[0])] == []


def columns(row: str) -> int:
    return re.sub(r"`[^`]*`|\\\|", "", row).count("|") - 1


def test_the_table_of_reasons_is_the_contracts() -> None:
    page = write_docs.OPERATIONS.read_text()
    assert write_docs.with_reasons(page) == page, "run: python hack/write_docs.py"


def test_the_rules_of_the_controller_are_those_that_it_is_tested_with() -> None:
    page = write_docs.OPERATIONS.read_text()
    assert write_docs.BEGIN_RULES in page
    assert write_docs.with_permissions(page) == page, "run: python hack/write_docs.py"


def test_the_chart_gives_the_controller_these_rules_and_no_other_on_pools_and_pods() -> None:
    template = (REPOSITORY / "helm" / "kvpool" / "templates" / "rbac.yaml").read_text()
    _, _, rules = template.partition('define "kvpool.controllerRules" }}\n')
    given = yaml.safe_load(rules.partition("\n{{- end }}")[0])
    assert given == {"rules": write_docs.PERMISSIONS}


def test_the_definition_and_its_page_are_those_of_the_types() -> None:
    assert write_docs.CRD.read_text() == pool_schema.as_yaml(), "run: python hack/write_docs.py"
    assert write_docs.API.read_text() == write_docs.api_page(), "run: python hack/write_docs.py"


def spec_leaves(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from spec_leaves(field, f"{path}.{name}")
        else:
            yield f"{path}.{name}", field


def test_every_field_of_the_spec_is_described_bounded_and_says_when_a_change_applies() -> None:
    schema = yaml.safe_load(write_docs.CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    leaves = dict(spec_leaves(schema["properties"]["spec"], "spec"))
    assert {"spec.engine.port", "spec.tiers.memory.size", "spec.agent.resources.limits"} <= set(leaves)
    for path, field in leaves.items():
        assert sum(field["description"].endswith(said) for said in pool_schema.APPLIES.values()) == 1, path
        assert "default" in field, path
        if field.get("type") == "string":
            assert "maxLength" in field or "enum" in field, path
        if field.get("type") == "object":
            assert "maxProperties" in field, path
        if field.get("type") in ("integer", "number"):
            assert {"minimum", "maximum"} <= set(field), path


def test_a_field_without_description_or_bound_is_refused() -> None:
    class Undescribed(msgspec.Struct):
        a: int = 0

    class Unbounded(msgspec.Struct):
        """Text."""

        a: Annotated[str, msgspec.Meta(description="a")] = ""

    for shape, sentence in ((Undescribed, "spec.a has no description"), (Unbounded, "spec.a has no max_length")):
        with pytest.raises(ValueError, match=sentence):
            pool_schema._object(shape, "spec")


@pytest.mark.parametrize("name", ["guarantees", "security"])
def test_every_promise_names_a_test_that_exists(name: str) -> None:
    page = (REPOSITORY / "docs" / f"{name}.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 10
    rows = [line for part in page.split("\n\n") if "|---|" in part for line in part.splitlines()]
    for path, test in named:
        assert sum(f"`{path}::{test}`" in row for row in rows) >= 1, f"{test} stands in no table"
    for path, test in named:
        assert f"def {test}(" in (REPOSITORY / path).read_text(), f"{path} has no {test}"


def test_every_threat_has_an_answer_and_a_test() -> None:
    page = (REPOSITORY / "docs" / "security.md").read_text()
    _, _, part = page.partition("## Threats and answers\n")
    rows = [row.split(" | ") for row in re.findall(r"^\| [STRIDE] \| .+$", part.partition("\n## ")[0], re.MULTILINE)]
    assert {row[0][-1] for row in rows} == set("STRIDE")
    for row in rows:
        assert len(row) == 4 and all(row) and re.match(r"`tests/[\w/]+\.py::\w+`", row[3]), row


def test_every_reason_of_a_miss_has_a_test_that_provokes_it() -> None:
    page = (REPOSITORY / "docs" / "guarantees.md").read_text()
    _, _, part = page.partition("## Misses, reason by reason\n")
    rows = re.findall(r"^\| `(\w+)` \| `(tests/[\w/]+\.py)::(\w+)`", part.partition("\n## ")[0], re.MULTILINE)
    words = [word for word, _, _ in rows]
    assert sorted(words) == sorted([*(reason.word for reason in MISS_REASONS), *ALSO_MISSES])


def test_no_link_between_pages_is_dead() -> None:
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
