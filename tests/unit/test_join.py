"""Joining never stops an engine: every obstacle is a bare start with its reason, and the user's own faults stay."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from kvpool_client import join, session, settings

CHOSEN = settings.Settings(socket="/nowhere/engine.sock", host_pool_bytes=1 << 20)
OURS = types.SimpleNamespace(kv_connector_extra_config={})


class Reports(list[tuple[str, str]]):
    """(reason, detail) of every bare start that was told to the agent."""

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    found = Reports()
    monkeypatch.setattr(session, "report_bare", lambda path, reason, detail: found.append((reason, detail)))
    return found


class Adapter:
    """The engine and our adapter to it, as the join sees them."""

    version = "0.32.1"
    obstacle: tuple[str, str] | None = None
    complete_raises: Exception | None = None
    connector_raises: Exception | None = None

    def connector(self, chosen: settings.Settings) -> Any:
        if self.connector_raises:
            raise self.connector_raises
        return OURS

    def complete(self, chosen: settings.Settings, config: Any) -> tuple[str, str] | None:
        if self.complete_raises:
            raise self.complete_raises
        return self.obstacle


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    made = Adapter()
    vllm = types.ModuleType("vllm")
    vllm.__getattr__ = lambda name: made.version if name == "__version__" else None  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    package = types.ModuleType("kvpool_client.engine_vllm")
    package.__path__ = []
    for name in ("cpu_worker", "spec", "tier", "configuration"):
        module = types.ModuleType(f"kvpool_client.engine_vllm.{name}")
        setattr(package, name, module)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package.configuration.connector = made.connector
    package.configuration.complete = made.complete
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return made


class Engine:
    """`create` gives what the engine was configured with; `refuses` says with what it raises."""

    def __init__(self, connector: Any = None, refuses: Callable[[Any], bool] = lambda _: False) -> None:
        self.arguments = types.SimpleNamespace(kv_transfer_config=connector)
        self.refuses = refuses
        self.calls: list[Any] = []

    def create(self) -> Any:
        connector = self.arguments.kv_transfer_config
        self.calls.append(connector)
        if self.refuses(connector):
            raise ValueError("the engine's own refusal")
        return types.SimpleNamespace(connector=connector)

    def configure(self) -> Any:
        return join.configure(CHOSEN, self.arguments, self.create)


def test_with_nothing_in_the_way_the_engine_gets_our_connector(adapter: Adapter, reports: Reports) -> None:
    engine = Engine()
    assert engine.configure().connector is OURS
    assert (engine.calls, reports) == ([OURS], [])


def test_a_connector_of_the_users_own_stays_untouched_and_is_reported(adapter: Adapter, reports: Reports) -> None:
    own = object()
    engine = Engine(own)
    assert engine.configure().connector is own
    assert (engine.calls, reports.reasons) == ([own], ["foreign_connector"])


def test_a_configuration_built_twice_from_the_same_arguments_is_joined_twice(
    adapter: Adapter, reports: Reports
) -> None:
    engine = Engine()
    assert engine.configure().connector is OURS
    assert engine.configure().connector is OURS
    assert (engine.calls, reports) == ([OURS, OURS], [])


def test_of_several_api_servers_the_one_that_starts_the_core_decides_and_tells(
    adapter: Adapter, reports: Reports
) -> None:
    adapter.obstacle = ("no_shm_room", "the host pool of the core has taken it")
    engine = Engine()
    engine.arguments._api_process_count, engine.arguments._api_process_rank = 2, 1
    assert engine.configure().connector is OURS
    adapter.connector_raises = ValueError("broken")
    assert engine.configure().connector is None
    own = Engine(object())
    own.arguments._api_process_count, own.arguments._api_process_rank = 2, 0
    assert own.configure().connector is own.calls[0]
    assert reports == []
    adapter.connector_raises = None
    engine.arguments._api_process_rank = -1  # it starts the core
    assert engine.configure().connector is None
    assert reports.reasons == ["no_shm_room"]


def test_an_untested_engine_starts_bare_unless_it_is_allowed(adapter: Adapter, reports: Reports) -> None:
    adapter.version = "0.99.0"
    engine = Engine()
    assert engine.configure().connector is None
    assert (engine.calls, reports.reasons) == ([None], ["engine_version_untested"])
    allowed = settings.Settings(CHOSEN.socket, CHOSEN.host_pool_bytes, allow_untested=True)
    assert join.configure(allowed, engine.arguments, engine.create).connector is OURS


def test_an_adapter_that_cannot_be_imported_is_a_bare_start(
    adapter: Adapter, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kvpool_client.engine_vllm.tier", None)
    monkeypatch.delattr(sys.modules["kvpool_client.engine_vllm"], "tier")
    assert Engine().configure().connector is None
    assert reports.reasons == ["adapter_import_failed"]
    assert "ImportError" in reports[0][1] or "ModuleNotFoundError" in reports[0][1]


@pytest.mark.parametrize("obstacle", ["multi_host", "no_shm_room", "host_pool_too_small"])
def test_an_obstacle_found_in_the_finished_configuration_is_a_bare_start(
    adapter: Adapter, reports: Reports, obstacle: str
) -> None:
    adapter.obstacle = (obstacle, "detail")
    engine = Engine()
    assert engine.configure().connector is None
    assert (engine.calls, reports) == ([OURS, None], [(obstacle, "detail")])


def test_an_engine_that_refuses_our_connector_is_configured_again_without_it(
    adapter: Adapter, reports: Reports
) -> None:
    engine = Engine(refuses=lambda connector: connector is OURS)
    assert engine.configure().connector is None
    assert (engine.calls, reports.reasons) == ([OURS, None], ["config_refused"])
    assert "the engine's own refusal" in reports[0][1]


def test_a_fault_of_the_users_own_still_raises_as_ever(adapter: Adapter, reports: Reports) -> None:
    engine = Engine(refuses=lambda _: True)
    with pytest.raises(ValueError, match="the engine's own refusal"):
        engine.configure()
    assert engine.calls == [OURS, None]


def test_a_connector_or_a_format_that_cannot_be_made_is_a_bare_start(adapter: Adapter, reports: Reports) -> None:
    adapter.connector_raises = RuntimeError("no such class")
    assert Engine().configure().connector is None
    adapter.connector_raises, adapter.complete_raises = None, AttributeError("no such field")
    assert Engine().configure().connector is None
    assert reports.reasons == ["config_refused", "adapter_import_failed"]


class TestRegister:
    """The entry point: it wraps once, and raises never."""

    @pytest.fixture
    def arguments(self, adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> type:
        class EngineArgs:
            kv_transfer_config = None

            def create_engine_config(self, usage: str = "") -> Any:
                return (self.kv_transfer_config, usage)

        module = types.ModuleType("vllm.engine.arg_utils")
        module.EngineArgs = EngineArgs  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vllm.engine", types.ModuleType("vllm.engine"))
        monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
        return EngineArgs

    TEXT = '{"version": 1, "socket": "/nowhere/engine.sock", "hostPoolBytes": 1048576}'

    def test_it_wraps_once_however_often_it_is_called(
        self, arguments: Any, reports: Reports, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(settings.VARIABLE, self.TEXT)
        join.register()
        wrapped = arguments.create_engine_config
        join.register()
        assert arguments.create_engine_config is wrapped
        assert arguments().create_engine_config("usage") == (OURS, "usage")

    @pytest.mark.parametrize("text", ["", "{", '{"version": 7}'])
    def test_a_missing_or_bad_variable_leaves_the_engine_as_it_is(
        self, arguments: Any, reports: Reports, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        original = arguments.create_engine_config
        monkeypatch.setenv(settings.VARIABLE, text)
        join.register()
        assert arguments.create_engine_config is original
        assert reports.reasons == (["client_config"] if text else [])

    def test_an_engine_without_the_expected_parts_is_left_alone(
        self, arguments: Any, reports: Reports, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(settings.VARIABLE, self.TEXT)
        monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", types.ModuleType("vllm.engine.arg_utils"))
        join.register()
        assert reports.reasons == ["adapter_import_failed"]
