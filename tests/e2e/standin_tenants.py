"""The stand-in engine with a front end: of which cache namespace a request is, it asks its agent, as
kvpool_client.engine_vllm.requests does."""

from typing import Any

from standin_engine import StandInEngine

from kvpool_client.front import CLAIM, Front, fold, parameters

MARK = "standin_request_mark"


class TenantsEngine(StandInEngine):
    def __init__(self, path: str, **options: Any) -> None:
        self._front = Front(path)
        super().__init__(path, **options)
        self.side._mark = MARK

    def complete(self, body: dict[str, Any]) -> dict[str, Any] | None:
        said = parameters(body)
        claim = said.get(CLAIM)
        verdict = self._front.judge(claim)
        kept = {name: value for name, value in said.items() if name not in (CLAIM, MARK)}
        told = {MARK: verdict.marked} if verdict.marked else {}
        salt = fold(verdict, str(claim), body.get("cache_salt"))
        return super().complete({**body, "cache_salt": salt or "", "kv_transfer_params": {**kept, **told} or None})
