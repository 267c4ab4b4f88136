"""What an agent may say of itself, for tests that need no agent to say it."""

from typing import Any

from kvpool_contract.status import AgentStatus, Arena, EngineTokens, Hits, Warm


def agent(state: str = "Ready(warm)", reason: str = "", **more: Any) -> AgentStatus:
    given: dict[str, Any] = {
        "version": 1, "pool": "chat", "member": "m", "incarnation": "i", "state": state, "reason": reason,
        "attached": True, "attaches": 1, "engine_healthy": True, "format": "f" * 32, "format_fields": {"model": "a"},
        "arena": Arena(), "warm": Warm(), "hits": Hits(), "engine_tokens": EngineTokens(), "transfers": {},
        "misses": {}, "counters": {}, "peers": [], "unknown_config_fields": [], "started_at": 0.0, "events": [],
    }  # fmt: skip
    return AgentStatus(**given | more)
