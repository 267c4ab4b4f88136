"""The CustomResourceDefinition of KVCachePool, made from the strict types of kvpool_operator.desired.

So API server, controller and command line refuse the same things, and `kubectl explain` reads like the documentation
that it is. Where a type says less than a good refusal needs, a CEL rule carries a sentence with the fix. Every list,
map and string is bounded: the API server counts a rule's cost from these bounds.
"""

import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import yaml

from kvpool_contract.names import API_GROUP
from kvpool_operator.desired.parts import IMMUTABLE, LIVE, NEW_PODS, Bytes
from kvpool_operator.desired.pool import API_VERSION, KIND, MAX_NAME, MAX_QUANTITY, PoolSpec
from kvpool_operator.desired.publication import RULES as PUBLICATION_RULES
from kvpool_operator.desired.quantity import format_quantity
from kvpool_operator.desired.spaces import LABEL_VALUE, LabelValue
from kvpool_operator.desired.spaces import RULES as SPACE_RULES
from kvpool_operator.desired.status_fields import PoolStatus
from kvpool_operator.desired.store import RULES as STORE_RULES
from kvpool_operator.desired.tiers import EXCLUDED, NO_SIZE

PLURAL, SINGULAR, SHORT = "kvcachepools", "kvcachepool", "kvp"
QUANTITY_LENGTH = 32  # characters
# Words of the status are no closed list: a controller that is newer than the definition may know more of them.
WORD_LENGTH = 64
INT64 = 2**63 - 1
_QUANTITY = r"^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?$"
_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

# Rules over more than one field, by the object that they look at.
RULES = {
    "": [
        (
            f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('{_NAME}')",
            f"metadata.name can't name the pool's Service; use at most {MAX_NAME} lower-case letters, digits and '-', "
            f"a letter first and no '-' last",
        )
    ],
    "spec": [
        (
            "!has(self.agent) || !has(self.agent.resources) || !has(self.agent.resources.limits) || "
            "!('memory' in self.agent.resources.limits) || !has(self.tiers) || !has(self.tiers.memory) || "
            "!has(self.tiers.memory.size) || !isQuantity(string(self.tiers.memory.size)) || "
            "!isQuantity(string(self.agent.resources.limits['memory'])) || "
            "quantity(string(self.agent.resources.limits['memory']))"
            ".compareTo(quantity(string(self.tiers.memory.size))) >= 0",
            "agent.resources.limits.memory has no room for the arena of tiers.memory.size; raise it, or lower that",
        ),
        *SPACE_RULES,
    ],
    "spec.store": STORE_RULES,
    "spec.publication": PUBLICATION_RULES,
    "spec.tiers.disk": [
        (
            "!has(self.storageClassName) || self.storageClassName == '' || "
            "!has(self.podVolume) || self.podVolume == ''",
            EXCLUDED,
        ),
        (
            "!has(self.storageClassName) || self.storageClassName == '' || (has(self.size) && "
            "(!isQuantity(string(self.size)) || quantity(string(self.size)).compareTo(quantity('0')) > 0))",
            NO_SIZE,
        ),
    ],
    "spec.transport.tls": [
        (
            "!has(self.mode) || self.mode != 'Secret' || (has(self.secretRef) && has(self.secretRef.name) && "
            "self.secretRef.name != '')",
            "mode Secret needs secretRef.name; name the Secret",
        ),
        (
            "(has(self.mode) && self.mode == 'Secret') || !has(self.secretRef) || !has(self.secretRef.name) || "
            "self.secretRef.name == ''",
            "only mode Secret uses secretRef.name; remove it, or set mode: Secret",
        ),
    ],
    "spec.agent.resources": [
        (
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
            "a request is above its limit; lower it or raise the limit",
        )
    ],
}

COLUMNS = (
    ("Phase", "string", ".status.phase", "Pending, Ready, Paused or Degraded."),
    ("Ready", "string", ".status.ready", "Members whose agent is ready, of all members."),
    ("Warm", "string", ".status.warm", "Members that hold their hot set, of all members."),
    ("Hit", "integer", ".status.hitPercent.total", "Percent of prompt blocks found in the pool."),
    ("Age", "date", ".metadata.creationTimestamp", ""),
)


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    schema = {
        "type": "object",
        "description": "A KVCachePool lets the replicas of one LLM service share their prefix KV-cache, and lets new "
        "replicas join warm. Pods join it by the label kvpool.io/pool.",
        "x-kubernetes-validations": _rules(RULES[""]),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _object(PoolSpec, "spec"),
            "status": _object(PoolStatus, "status"),
        },
    }
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"description": text} if text else {})
        for name, kind, path, text in COLUMNS
    ]
    version = {
        "name": API_VERSION.partition("/")[2],
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT],
            },
            "versions": [version],
        },
    }


def as_yaml() -> str:
    return "# Made by hack/write_docs.py from kvpool_operator.desired; change it there.\n" + yaml.safe_dump(
        definition(), sort_keys=False, width=120
    )


def _rules(rules: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]


def _object(shape: Any, path: str) -> dict[str, Any]:
    """The schema of a struct. The spec's parts default to empty objects, so that the defaults within apply."""
    properties, required = {}, []
    for field in msgspec.structs.fields(shape):
        inner = f"{path}.{field.encode_name}"
        properties[field.encode_name] = schema = _value(field.type, inner)
        if field.required:
            required.append(field.encode_name)
        elif path.startswith("spec") and field.default is not None:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            schema["default"] = {} if isinstance(default, msgspec.Struct) else _written(default)
    schema = {"type": "object", "description": inspect.cleandoc(shape.__doc__).replace("\n", " ")}
    if path == "spec":
        schema["default"] = {}
    if required:
        schema["required"] = required
    if path in RULES:
        schema["x-kubernetes-validations"] = _rules(RULES[path])
    return schema | {"properties": properties}


def _written(default: Any) -> Any:
    if isinstance(default, Bytes):
        return format_quantity(default)
    return int(default) if isinstance(default, float) and default.is_integer() else default


def _value(kind: Any, path: str) -> dict[str, Any]:
    meta = next((a for a in get_args(kind) if isinstance(a, msgspec.Meta)), msgspec.Meta())
    if meta.description is not None or meta != msgspec.Meta():
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        kind = next(a for a in get_args(kind) if a is not type(None))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _object(kind, path)
    if not meta.description:
        raise ValueError(f"{path} has no description: write one with field() in its type")
    said: dict[str, Any] = {"description": meta.description}
    if meta.extra and "applies" in meta.extra:
        said["description"] += f" {APPLIES[meta.extra['applies']]}"
        if meta.extra["applies"] == IMMUTABLE:
            said["x-kubernetes-validations"] = _rules([("self == oldSelf", "it can't be changed; make a new pool")])
    if kind is Bytes:
        return said | _quantity((meta.extra or {}).get("least", 0))
    if get_origin(kind) is Literal and path.startswith("status"):
        return said | {"type": "string", "maxLength": WORD_LENGTH}
    if get_origin(kind) is Literal:
        return said | {"type": "string", "enum": list(get_args(kind))}
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        of_structs = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        items = _object(inner, path + "[]") if of_structs else _value(inner, path + "[]")
        keys = (
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
            if "type" in str(items.get("required"))
            else {"x-kubernetes-list-type": "atomic"}
        )
        return said | {"type": "array", "maxItems": _bound(meta, path), "items": items} | keys
    if get_origin(kind) is dict and get_args(kind)[1] == LabelValue:
        text = {"type": "string", "maxLength": LABEL_VALUE}
        return said | {"type": "object", "maxProperties": _bound(meta, path), "additionalProperties": text}
    if get_origin(kind) is dict:
        return said | {"type": "object", "maxProperties": _bound(meta, path), "additionalProperties": _quantity(0)}
    if kind is bool:
        return said | {"type": "boolean"}
    if kind in (int, float):
        bounds = {"minimum": meta.ge, "maximum": meta.le}
        typed = {"type": "integer", "format": "int64"} if kind is int else {"type": "number"}
        return said | typed | {name: bound for name, bound in bounds.items() if bound is not None}
    if kind is str:
        pattern = {"pattern": meta.pattern} if meta.pattern else {}
        return said | {"type": "string", "maxLength": _bound(meta, path)} | pattern
    raise ValueError(f"{path}: no schema for {kind}")


APPLIES = {
    LIVE: "A change takes effect at once.",
    NEW_PODS: "A change is for new pods only.",
    IMMUTABLE: "It can't be changed.",
}


def _bound(meta: msgspec.Meta, path: str) -> int:
    if meta.max_length is None:
        raise ValueError(f"{path} has no max_length: the API server needs one")
    return meta.max_length


def _quantity(least: int) -> dict[str, Any]:
    text, top = format_quantity(least), format_quantity(MAX_QUANTITY)
    written = f"type(self) == int || self.matches('{_QUANTITY}')"
    enough = (
        f"type(self) == int ? self >= {least} : !isQuantity(self) || quantity(self).compareTo(quantity('{text}')) >= 0"
    )
    little = (
        f"type(self) == int ? self <= {MAX_QUANTITY} : "
        f"!isQuantity(self) || quantity(self).compareTo(quantity('{top}')) <= 0"
    )
    return {
        "x-kubernetes-int-or-string": True,
        "maxLength": QUANTITY_LENGTH,
        "x-kubernetes-validations": _rules(
            [
                (written, "it is no quantity; write a number with a unit, such as 500Mi or 4Gi"),
                (enough, f"it is below {text}; raise it"),
                (little, f"it is above {top}; lower it"),
            ]
        ),
    }
