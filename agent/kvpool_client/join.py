"""Joining an unmodified engine by its environment alone, without ever stopping it.

vLLM calls `register` as a general plug-in, in every one of its processes. It wraps the step in which the engine
builds its configuration: there the cache connector is filled in where the user has none. Whatever stands against
that (no room, an unknown version, a broken adapter, the engine's own refusal) is a bare start with a reason, told
to the agent; an exception here would end the engine, so there is none.
"""

import logging
import os
import traceback
from collections.abc import Callable
from typing import Any

from kvpool_client import session, settings

log = logging.getLogger("kvpool.client")

# minor versions of vLLM in which the whole suite has passed
TESTED_VLLM = ("0.32",)
_MARK = "_kvpool_joined"
_OURS = "_kvpool_connector"


def register() -> None:
    """Entry point of the group vllm.general_plugins."""
    text = os.environ.get(settings.VARIABLE)
    if not text:
        return
    try:
        _wrap(settings.parse(text))
    except ValueError as error:
        log.error("kvpool: %s; the engine serves without the pool", error)
        session.report_bare(settings.socket_of(text), "client_config", str(error))
    except Exception:
        log.exception("kvpool: could not join; the engine serves without the pool")
        session.report_bare(settings.socket_of(text), "adapter_import_failed", traceback.format_exc(limit=-1))


def _wrap(chosen: settings.Settings) -> None:
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    if getattr(original, _MARK, False):
        return

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        return configure(chosen, self, lambda: original(self, *args, **kwargs))

    setattr(create_engine_config, _MARK, True)
    EngineArgs.create_engine_config = create_engine_config


def configure(chosen: settings.Settings, arguments: Any, create: Callable[[], Any]) -> Any:
    """Builds the engine's configuration with the connector where it can be, else without, and reports why."""

    def bare(reason: str, detail: str) -> Any:
        log.warning("kvpool: %s: %s; the engine serves without the pool", reason, detail)
        if not is_front_end(arguments):
            session.report_bare(chosen.socket, reason, detail)
        arguments.kv_transfer_config = None
        return create()

    if arguments.kv_transfer_config is getattr(arguments, _OURS, None):
        arguments.kv_transfer_config = None  # built a second time from the same arguments: it is not the user's
    if arguments.kv_transfer_config is not None:
        log.warning("kvpool: the user has a KV connector; left as it is")
        if not is_front_end(arguments):
            session.report_bare(chosen.socket, "foreign_connector", "kv_transfer_config is set")
        return create()
    try:
        obstacle = find_obstacle(chosen)
    except Exception:  # noqa: BLE001 - the adapter is foreign ground here
        return bare("adapter_import_failed", traceback.format_exc(limit=-1))
    if obstacle is not None:
        return bare(*obstacle)
    from kvpool_client.engine_vllm import configuration

    try:
        connector = configuration.connector(chosen)
        if chosen.cache_namespaces:
            mark_requests(chosen, connector)
        setattr(arguments, _OURS, connector)
        arguments.kv_transfer_config = connector
        config = create()
    except Exception:  # noqa: BLE001 - tried again without our part, so a fault of the user's own shows as ever
        return bare("config_refused", traceback.format_exc(limit=-1))
    if is_front_end(arguments):
        return config
    try:
        obstacle = configuration.complete(chosen, config)
    except Exception:  # noqa: BLE001
        return bare("adapter_import_failed", traceback.format_exc(limit=-1))
    return config if obstacle is None else bare(*obstacle)


def mark_requests(chosen: settings.Settings, connector: Any) -> None:
    """Lets requests be of several cache namespaces, where this engine's front end can be told; else of one."""
    from kvpool_client.engine_vllm import requests

    try:
        requests.install(chosen.socket)
    except (AttributeError, ImportError):
        log.error("kvpool: this engine's requests can't be told apart; it serves one cache namespace", exc_info=True)
    else:
        connector.kv_connector_extra_config[requests.MARK_FIELD] = requests.mark_of_this_start()


def is_front_end(arguments: Any) -> bool:
    """Whether this process is one of several API servers of an engine. What stands against joining was found and told
    by the process that has started the engine's core, whose host pool takes its room by now."""
    servers, number = getattr(arguments, "_api_process_count", 1), getattr(arguments, "_api_process_rank", 0)
    return bool(servers > 1 and number >= 0)


def find_obstacle(chosen: settings.Settings) -> tuple[str, str] | None:
    """What forbids joining, as (reason, detail); raises when the adapter can't be imported."""
    import vllm

    minor = ".".join(str(vllm.__version__).split(".")[:2])
    if minor not in TESTED_VLLM and not chosen.allow_untested:
        return "engine_version_untested", f"vLLM {vllm.__version__}, tested {', '.join(TESTED_VLLM)}"
    from kvpool_client.engine_vllm import cpu_worker, spec, tier  # noqa: F401

    return None
