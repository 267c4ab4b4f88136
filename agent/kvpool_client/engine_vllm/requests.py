"""The one place in vLLM's front ends where a request becomes one of the engine's: its salt is folded here.

Every API server process, and an engine without a server, makes its engine requests in `InputProcessor.process_inputs`,
whatever endpoint they came by. The wrapped method takes the claim out of the request's parameters and puts what the
agent says of it under a name that is drawn anew for each start of an engine and travels in the engine's own
configuration, and in the environment of its processes, each of which builds the configuration: a client that wrote it
itself would have to guess it.

An engine whose front end lacks the method serves one cache namespace, and its attach says so.
"""

import logging
import os
import secrets
from typing import Any

from kvpool_client.front import CLAIM, FOLDED, Front, fold, parameters

log = logging.getLogger("kvpool.client")

MARK_FIELD = "kvpool_request_mark"
MARK_VARIABLE = "KVPOOL_REQUEST_MARK"
_MARK = "_kvpool_requests"


def mark_of_this_start() -> str:
    """The same in all processes of an engine: those that it starts inherit it."""
    return os.environ.setdefault(MARK_VARIABLE, f"kvpool_{secrets.token_hex(16)}")


def install(socket: str) -> None:
    """Wraps the method. Raises AttributeError or ImportError where this engine has none."""
    from vllm.v1.engine.input_processor import InputProcessor

    process = InputProcessor.process_inputs
    if getattr(process, _MARK, False):
        return
    front = Front(socket)

    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, *args, **kwargs)
        mark = mark_of(self.vllm_config)
        if mark:
            try:
                settle(front, mark, request)
            except Exception:
                log.exception("kvpool: a request can't be told from others; it is kept apart from all")
                request.cache_salt = apart()
        return request

    setattr(process_inputs, _MARK, True)
    InputProcessor.process_inputs = process_inputs


def apart() -> str:
    """A salt that no other request has."""
    return FOLDED + secrets.token_hex(16)


def mark_of(config: Any) -> str:
    """The name that this engine's requests bear; empty for an engine without our connector."""
    transfer = getattr(config, "kv_transfer_config", None)
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    return str(extra.get(MARK_FIELD, ""))


def settle(front: Front, mark: str, request: Any) -> None:
    """Folds what the request is into its salt, and tells the tier."""
    sampling = request.sampling_params
    extra = getattr(sampling, "extra_args", None)
    said = parameters(extra)
    claim = said.get(CLAIM)
    verdict = front.judge(claim)
    request.cache_salt = fold(verdict, str(claim), request.cache_salt)
    if sampling is not None and (CLAIM in said or mark in said or verdict.marked):
        kept = {name: value for name, value in said.items() if name not in (CLAIM, mark)}
        told = {mark: verdict.marked} if verdict.marked else {}
        sampling.extra_args = {**(extra or {}), "kv_transfer_params": {**kept, **told}}
