"""Writes what is made from code: reasons and permissions in docs/operations.md, crds/, and docs/api.md.

    python hack/write_docs.py

tests/unit/test_docs.py fails while a file says something else.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pool_schema
import yaml

from kvpool_contract.reasons import REASONS
from kvpool_operator.controller.permissions import RULES as PERMISSIONS
from kvpool_operator.desired.pool import API_VERSION, KIND

REPOSITORY = Path(__file__).resolve().parent.parent
OPERATIONS, API = REPOSITORY / "docs" / "operations.md", REPOSITORY / "docs" / "api.md"
CRD = REPOSITORY / "crds" / "kvcachepools.kvpool.io.yaml"
BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"
BEGIN_RULES, END_RULES = "<!-- permissions: begin -->", "<!-- permissions: end -->"
API_HEAD = f"""# API

`{KIND}`, `{API_VERSION}`, short name `kvp`, namespaced. This page is made from the definition in `crds/`, and
`kubectl explain kvp.spec --recursive` says the same. A pool lies in the namespace of its pods. Its name is at most
{pool_schema.MAX_NAME} characters long. Sizes are Kubernetes quantities up to `1Ei`: `500Mi`, `4Gi`, `1e9`.

Unknown fields are refused by `kubectl` and by `kvpool`. A field for *new pods only* takes effect in pods that are made
after the change; a *live* one in running pods, too, as soon as the kubelet has brought it there, up to two minutes.
`kvpool check FILE` says offline what the API server would say.
"""


def with_reasons(page: str) -> str:
    """The page with the table between its marks made anew."""
    rows = ["| reason | what happened | what to do |", "|---|---|---|"]
    rows += [f"| `{r.word}` | {r.sentence} | {r.fix} |" for r in REASONS.values()]
    return _between(page, BEGIN, END, rows)


def with_permissions(page: str) -> str:
    """The page with the controller's rules between their marks made anew."""
    rules = yaml.safe_dump(PERMISSIONS, sort_keys=False, default_flow_style=None, width=200).rstrip()
    return _between(page, BEGIN_RULES, END_RULES, ["```yaml", rules, "```"])


def _between(page: str, begin: str, end: str, lines: list[str]) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, *lines, end + after])


def api_page() -> str:
    """docs/api.md, from the definition."""
    schema = pool_schema.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    rules = [entry["message"] for part in (schema, *_objects(spec)) for entry in part.get(RULES, ())]
    lines = [API_HEAD, "## spec", ""]
    lines += ["| field | default | bounds | what it is | a change |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(spec, "")]
    lines += ["", "Beyond the bounds of single fields:", ""]
    lines += [f"* {message}." for message in rules]
    lines += ["", "## status", "", status["description"], "", "| field | what it is |", "|---|---|"]
    lines += [f"| {row[0]} | {row[3]} |" for row in _rows(status, "")]
    return "\n".join(lines) + "\n"


RULES = "x-kubernetes-validations"


def _objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "properties" in schema:
        yield schema
        for inner in schema["properties"].values():
            yield from _objects(inner)


def _rows(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str, str]]:
    for name, field in schema["properties"].items():
        inner = f"{path}{name}"
        text = field["description"]
        if "properties" in field:
            yield f"**`{inner}`**", "", "", f"**{text}**", ""
            yield from _rows(field, f"{inner}.")
            continue
        applies = next((word for word, said in pool_schema.APPLIES.items() if text.endswith(said)), "")
        text = text.removesuffix(pool_schema.APPLIES.get(applies, "")).strip()
        yield f"`{inner}`", _default(field), _bounds(field), text, applies
        if "properties" in field.get("items", {}):
            yield from _rows(field["items"], f"{inner}[].")


def _default(field: dict[str, Any]) -> str:
    default = field.get("default", "")
    return "" if default in ("", {}) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _bounds(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    least = [rule["message"] for rule in field.get(RULES, ()) if rule["message"].startswith("it is below")]
    if least:
        return f"at least {least[0].removeprefix('it is below ').removesuffix('; raise it')}"
    if "minimum" in field:
        return f"{field['minimum']} to {field['maximum']}" if "maximum" in field else f"at least {field['minimum']}"
    for name, unit in (("maxLength", "characters"), ("maxItems", "entries"), ("maxProperties", "entries")):
        if name in field:
            return f"at most {field[name]} {unit}"
    return ""


if __name__ == "__main__":
    OPERATIONS.write_text(with_permissions(with_reasons(OPERATIONS.read_text())))
    CRD.write_text(pool_schema.as_yaml())
    API.write_text(api_page())
