"""YAML as the API server reads it, which is not quite as PyYAML reads it.

Left to itself PyYAML turns `8000:8000` into a number and a date into a date, and writes the text "1e3"
without quotes, which the server then takes for a number. Here a plain word is a number only where the server
sees one, and every text that could be mistaken is quoted. Documents that are not changed are kept as they
were written.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

_BOUNDARY = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*|0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$")
_OWN_RESOLVERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}
# Anything like a number, a date, a special float or a word of YAML 1.1 for true, false and null.
_MISTAKABLE = re.compile(
    r"[-+.]{0,2}[0-9][-+.:_0-9a-fotxz ]*|[-+]?\.(inf|nan)|~|y|n|yes|no|on|off|true|false|null|", re.IGNORECASE
)


class ManifestError(ValueError):
    """The manifest can't be used; the message says where and why."""


@dataclass(frozen=True)
class Document:
    """One document of a manifest: as written, and what it says."""

    text: str
    content: Any


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own table, replaced per class)
        first: [(tag, pattern) for tag, pattern in entries if tag not in _OWN_RESOLVERS]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _MISTAKABLE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def load(text: str) -> list[Document]:
    """The documents of a manifest, without empty ones; raises ManifestError."""
    documents = []
    for piece in _BOUNDARY.split(text):
        try:
            content = yaml.load(piece, Loader=_Loader)  # noqa: S506 (a SafeLoader)
        except (yaml.YAMLError, ValueError) as error:
            where = " ".join(str(error).split())
            raise ManifestError(f"the manifest is no YAML: {where}; correct it") from None
        if content is not None:
            documents.append(Document(piece.strip("\n") + "\n", content))
    return documents


def dump(content: Any) -> str:
    """One document, keys in their own order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000)


def join(texts: list[str]) -> str:
    """A manifest of several documents."""
    return "".join(f"---\n{text}" for text in texts)
