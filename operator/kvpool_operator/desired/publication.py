"""What members tell each other of, and the prefixes that are declared for it.

A prefix may lie in a ConfigMap of the pods' namespace. The controller puts what it finds there into the pool's own
configuration, which is all that agents read; one that it does not find is told of by nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from kvpool_contract.prefixes import (
    DECLARED,
    MAX_PREFIXES,
    MAX_TEXT,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    TOO_LONG,
    Prefix,
    too_long,
)
from kvpool_contract.status import AgentStatus
from kvpool_operator.desired.heard import One, meaning, seen
from kvpool_operator.desired.parts import LIVE, Part, PoolError, field

ConfigMaps = Mapping[str, Mapping[str, str] | None]  # by name, None for one that is not there
NOT_FOUND, UNRESOLVED, RESOLVING = "PrefixesNotFound", "PrefixesUnresolved", "PrefixesResolving"


class ConfigMapKeyRef(Part, frozen=True):
    """An entry of a ConfigMap in the pods' namespace, whose text is taken as it stands, with its last line's end. The
    controller reads it; what `kvpool inject` writes has it not."""

    name: Annotated[
        str, field("Name of the ConfigMap.", LIVE, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    ]
    key: Annotated[str, field("Its entry.", LIVE, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class DeclaredPrefix(Part, frozen=True):
    """The beginning of prompts: exactly one of its fields."""

    text: Annotated[
        str,
        field(
            "As the engine's tokenizer is given it for a completion. It adds the special tokens of its own; of a chat, "
            "write what the template makes of it.",
            LIVE,
            max_length=MAX_TEXT,
        ),
    ] = ""
    token_ids: Annotated[
        list[Annotated[int, field("A token's id.", LIVE, ge=0, le=MAX_TOKEN_ID)]],
        field("Its token ids, all of them.", LIVE, max_length=MAX_TOKENS),
    ] = msgspec.field(default_factory=list)
    config_map_key_ref: Annotated[ConfigMapKeyRef | None, field("Where its text lies.", LIVE)] = None


class Publication(Part, frozen=True):
    """What members tell each other of. It costs no bytes: a block moves when it is asked for."""

    policy: Annotated[
        Literal["Always", "Declared", "Never"],
        field(
            "Always: a member tells of every block that it holds. Declared: of those that lie wholly inside one of "
            "the prefixes. Never: of none, so that nobody loads from it, while it still finds its own and those of "
            "others. Blocks that others are not told of are not written to the external store either."
        ),
    ] = "Always"
    prefixes: Annotated[
        list[DeclaredPrefix],
        field(
            "Beginnings of prompts that members tell of with the policy Declared. Prompts are compared by their token "
            "ids, exactly and from the first one on.",
            LIVE,
            max_length=MAX_PREFIXES,
        ),
    ] = msgspec.field(default_factory=list)
    max_depth_tokens: Annotated[
        int,
        field(
            "Of no block that ends deeper in its prompt than so many tokens, in whole blocks. 0: no bound.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    decode_output: Annotated[
        bool,
        field(
            "Whether what an engine generates is kept and told of as its prompts are. A conversation whose next turn "
            "contains the answer finds it then, on every replica, for the copies and the memory that each answer "
            "takes in host pool and arena. false: what is kept and told of ends with the last whole block of the "
            "prompt, and an engine finds what it has generated on its own device alone."
        ),
    ] = False


NO_PREFIXES = "policy Declared needs prefixes; add some, or set policy: Never"
NOT_DECLARED = "prefixes are used with policy Declared alone; set it, or take them out"
ONE_SOURCE = "an entry of prefixes has none or several of text, tokenIds and configMapKeyRef; keep one"
_DECLARED = f"(has(self.policy) && self.policy == '{DECLARED}')"
_SOURCES = (
    "(has(p.text) && p.text != '' ? 1 : 0) + (has(p.tokenIds) && p.tokenIds.size() > 0 ? 1 : 0) + "
    "(has(p.configMapKeyRef) ? 1 : 0)"
)
RULES = [
    (f"!{_DECLARED} || (has(self.prefixes) && self.prefixes.size() > 0)", NO_PREFIXES),
    (f"{_DECLARED} || !has(self.prefixes) || self.prefixes.size() == 0", NOT_DECLARED),
    (f"!has(self.prefixes) || self.prefixes.all(p, {_SOURCES} == 1)", ONE_SOURCE),
    (
        "!has(self.prefixes) || (self.prefixes.map(p, has(p.text) ? p.text.size() : 0).sum() "
        f"<= {MAX_TEXT} && self.prefixes.map(p, has(p.tokenIds) ? p.tokenIds.size() : 0).sum() <= {MAX_TOKENS})",
        f"prefixes: {TOO_LONG}",
    ),
]


def check_publication(publication: Publication) -> None:
    """Raises PoolError, as the rules of the definition refuse."""
    declared, prefixes = publication.policy == DECLARED, publication.prefixes
    wrong = ""
    if declared != bool(prefixes):
        wrong = NO_PREFIXES if declared else NOT_DECLARED
    elif any(bool(p.text) + bool(p.token_ids) + bool(p.config_map_key_ref) != 1 for p in prefixes):
        wrong = ONE_SOURCE
    elif too_long(agent_prefixes(publication)):
        wrong = f"prefixes: {TOO_LONG}"
    if wrong:
        raise PoolError(f"pool field spec.publication: {wrong}")


def agent_prefixes(publication: Publication) -> tuple[Prefix, ...]:
    """As agents are told of them: those whose text or ids are known."""
    known = [p for p in publication.prefixes if p.config_map_key_ref is None]
    return tuple(Prefix(text=p.text, tokenIds=tuple(p.token_ids)) for p in known)


def config_maps(publication: Publication) -> list[str]:
    """The names of the ConfigMaps that prefixes lie in."""
    return sorted({p.config_map_key_ref.name for p in publication.prefixes if p.config_map_key_ref is not None})


def with_texts(publication: Publication, found: ConfigMaps) -> tuple[Publication, str]:
    """The same with the texts of its ConfigMaps in their place, and what is wrong with one that has none to take."""
    prefixes, problems = list(publication.prefixes), []
    for place, prefix in enumerate(prefixes):
        if (ref := prefix.config_map_key_ref) is None:
            continue
        entries = found.get(ref.name)
        where = f"spec.publication.prefixes[{place}]: "
        if entries is None:
            problems.append(f"{where}there is no ConfigMap {ref.name}; create it, or correct configMapKeyRef.name")
        elif not entries.get(ref.key):
            problems.append(f"{where}ConfigMap {ref.name} has no text in the entry {ref.key}; write one there")
        else:
            known = [*prefixes[:place], DeclaredPrefix(text=entries[ref.key]), *prefixes[place + 1 :]]
            filled = msgspec.structs.replace(publication, prefixes=known)
            if too_long(agent_prefixes(filled)):
                problems.append(f"{where}with the text of ConfigMap {ref.name}: {TOO_LONG}")
            else:
                prefixes = known
    return msgspec.structs.replace(publication, prefixes=prefixes), " ".join(f"{problem}." for problem in problems)


# -- what members say of them ------------------------------------------------------------------------


def verdict(members: Sequence[One], named: Callable[[Sequence[One]], str]) -> tuple[bool, str, str]:
    """Whether those that answer may tell of all prefixes, a word and a sentence. named: the names of members."""
    total = len(members)
    told = [(m, m.status.declared) for m in members if m.status is not None]
    if found := [m for m in members if m.status is not None and (m.status.declared.reason or _of_another(m.status))]:
        return False, UNRESOLVED, f"{len(found)} of {total}: {named(found)}. {_why(found)}"
    if found := [m for m, declared in told if declared.resolved < declared.prefixes or not declared.prefixes]:
        return False, RESOLVING, f"{len(found)} of {total} do not know them yet: {named(found)}."
    # members with other blocks have another number of them
    counts = sorted({(declared.blocks, declared.prefixes) for _, declared in told})
    known = " or ".join(f"{blocks} blocks of {prefixes} prefixes" for blocks, prefixes in counts)
    return True, "AllDeclared", f"Every agent that answers, of {total}, may tell of {known}."


def _why(members: Sequence[One]) -> str:
    """Each reason once, with what was seen."""
    told = [m.status for m in members if m.status is not None]
    words = [meaning(status.declared.reason for status in told if status.declared.reason)]
    if any(map(_of_another, told)):
        words.append("Their pods were made with another policy: make them anew.")
    return " ".join(filter(None, words)) + seen(status.declared.detail for status in told)


def _of_another(status: AgentStatus) -> bool:
    """Whether its pod was made with another policy."""
    return "publication.policy" in status.config.needs_new_pods
