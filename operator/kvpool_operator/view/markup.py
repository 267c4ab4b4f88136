"""HTML from code: whatever is put between tags or into an attribute is escaped, and only a tag's result is not."""

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that may stand in a page as it is. Made by this module alone."""

    __slots__ = ()


Inside = str | int


def tag(name: str, *inside: Inside, **attributes: Inside) -> Markup:
    """An element. An attribute's name may end with `_`, as `class_`, and has `-` for each `_` before that."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(v))}"' for key, v in attributes.items())
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[Inside]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else _escaped(str(part)) for part in parts))


def table(titles: Sequence[str], rows: Iterable[Sequence[Inside]]) -> Markup:
    head = tag("tr", *(tag("th", title) for title in titles))
    return tag("table", tag("thead", head), tag("tbody", *(tag("tr", *(tag("td", c) for c in row)) for row in rows)))


def document(title: str, every: int, style: str, *body: Inside) -> str:
    """A whole page, which is loaded anew every so many seconds."""
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="refresh" content="{every:d}">'),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    return f"<!doctype html>{tag('html', head, tag('body', *body), lang='en')}"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
