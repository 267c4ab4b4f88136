"""What the injector does to a template, written down so that it can be undone.

An admission webhook is called a second time after other webhooks have had their turn, and people copy manifests out
of a running cluster. So every injection begins with the template as its user wrote it: parts that were added are
removed by name, and a field of the user's own that was edited gets its former value back. A field that somebody else
has changed since keeps their value, which then counts as the user's. The record lies in one annotation.

Anybody can write that annotation, and the webhook would undo what it says on top of what policies have made of the pod.
So a record counts only where all that it names is what the injector may have written.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from kvpool_operator.desired.quantity import QuantityError, parse_milli

VERSION = 1
_Path = tuple[str, ...]
_ADDED = re.compile(
    r"spec/(volumes|initContainers|containers/[^/]+/volumeMounts)/kvpool-[^/]+"
    r"|spec/containers/[^/]+/env/KVPOOL_CLIENT_CONFIG|spec/imagePullSecrets/[-.a-z0-9]+"
)
_CHANGED = re.compile(
    r"spec/containers/[^/]+/(command|env/(PYTHONPATH|VLLM_PLUGINS)|resources/(requests|limits)/memory)"
    r"|spec/resources/(requests|limits)/(cpu|memory)|spec/volumes/[^/]+/emptyDir/sizeLimit"
    r"|spec/terminationGracePeriodSeconds"
    r"|metadata/labels/kvpool\.io~1pool"
    r"|metadata/annotations/(kvpool|traffic\.sidecar\.istio|config\.linkerd)\.io~1[^/]+"
    r"|metadata/annotations/cluster-autoscaler\.kubernetes\.io~1safe-to-evict-local-volumes"
)
_MADE = re.compile(
    r"metadata(/labels|/annotations)?|spec/(volumes|initContainers|imagePullSecrets)"
    r"|spec/containers/[^/]+/(env|volumeMounts|resources(/requests|/limits)?)"
)


class UnreadableRecordError(ValueError):
    """The annotation holds something that no injector has written."""


class Edits:
    """Changes a template in place and keeps the record.

    A path steps through dictionaries by key and through lists by the `name` of their items; of several items of one
    name the last counts, as it does for the kubelet.
    """

    def __init__(self, template: dict[str, Any]) -> None:
        self.template = template
        self._added: list[_Path] = []
        self._changed: list[tuple[_Path, Any, Any]] = []
        self._made: list[_Path] = []

    def collection(self, *path: str, kind: Callable[[], Any]) -> Any:
        """The dictionary or list at `path`, made where there is none (then it goes again when it is empty)."""
        parent = _walk(self.template, path[:-1])
        found = parent.get(path[-1])
        if found is None:
            found = parent[path[-1]] = kind()
            self._made.append(path)
        return found

    def add(self, path: _Path, item: dict[str, Any]) -> None:
        """Appends a part of kvpool's own to the list at `path`."""
        self.collection(*path, kind=list).append(item)
        self._added.append((*path, item["name"]))

    def set(self, path: _Path, value: Any) -> None:
        """Gives a field of the user's, or a named item of a list, a new value."""
        before = _walk(self.template, path)
        if before != value:
            _put(self.template, path, value)
            self._changed.append((path, before, value))

    def add_words(self, annotation: str, words: Iterable[str]) -> None:
        """Adds words to an annotation that lists some with commas between them; what the user has listed stays."""
        there = str(self.template["metadata"]["annotations"].get(annotation) or "")
        present = [word.strip() for word in there.split(",") if word.strip()]
        missing = [word for word in words if word not in present]
        if missing:
            self.set(("metadata", "annotations", annotation), ",".join([*present, *missing]))

    def record(self, engine: str) -> str:
        """The annotation's value. `engine` names the container that was taken for the engine's."""
        return json.dumps(
            {
                "version": VERSION,
                "engine": engine,
                "added": [_pointer(path) for path in self._added],
                "changed": [(_pointer(path), before, after) for path, before, after in self._changed],
                "made": [_pointer(path) for path in self._made],
            },
            separators=(",", ":"),
        )


def undo(template: dict[str, Any], record: str) -> str:
    """Takes back, in place, what `record` says; gives the engine's name in it. Raises UnreadableRecordError, and
    changes nothing then."""
    try:
        fields = json.loads(record)
        if fields["version"] != VERSION:
            raise UnreadableRecordError(f"version {fields['version']!r}")
        engine = str(fields["engine"])
        added = [_path(entry, _ADDED) for entry in fields["added"]]
        changed = [(_path(path, _CHANGED), before, after) for path, before, after in fields["changed"]]
        made = [_path(entry, _MADE) for entry in fields["made"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableRecordError(str(error)) from None
    for path in added:
        items = _walk(template, path[:-1])
        if isinstance(items, list):
            items[:] = [item for item in items if not _is(item, path[-1])]
    for path, before, after in reversed(changed):
        if _same(_walk(template, path), after):
            _put(template, path, before)
    for path in reversed(made):
        if _walk(template, path) in ([], {}):
            _put(template, path, None)
    return engine


def _pointer(path: _Path) -> str:
    """One text, written like a JSON pointer."""
    return "/".join(step.replace("~", "~0").replace("/", "~1") for step in path)


def _path(pointer: Any, ours: re.Pattern[str]) -> _Path:
    if not isinstance(pointer, str) or not ours.fullmatch(pointer):
        raise UnreadableRecordError(f"{pointer!r} is no path that an injector writes")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/"))


def _is(item: Any, name: str) -> bool:
    return isinstance(item, dict) and item.get("name") == name


def _walk(start: Any, path: _Path) -> Any:
    """What lies at `path`, or None."""
    for step in path:
        if isinstance(start, dict):
            start = start.get(step)
        elif isinstance(start, list):
            start = next((item for item in reversed(start) if _is(item, step)), None)
        else:
            return None
    return start


def _put(template: dict[str, Any], path: _Path, value: Any) -> None:
    """Replaces, appends or (None) removes. A parent that has gone takes its fields with it."""
    parent, last = _walk(template, path[:-1]), path[-1]
    if isinstance(parent, dict):
        if value is None:
            parent.pop(last, None)
        else:
            parent[last] = value
    elif isinstance(parent, list):
        place = next((n for n in reversed(range(len(parent))) if _is(parent[n], last)), None)
        if place is None:
            if value is not None:
                parent.append(value)
        elif value is None:
            del parent[place]
        else:
            parent[place] = value


def _same(found: Any, written: Any) -> bool:
    """Equal, or two spellings of one quantity: the API server writes quantities anew."""
    if found == written:
        return True
    try:
        return parse_milli(found) == parse_milli(written)
    except QuantityError:
        return False
