"""What a person would look with: Prometheus, which scrapes and is asked, and a browser that says what a page became."""

import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from replica import REPOSITORY, free_port, get, wait_for

sys.path.insert(0, str(REPOSITORY / "hack"))

import viewers

SCRAPED = "1s"
T = TypeVar("T")


@cache
def prepared() -> Path:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "hack" / "prepare.py"), "viewers"], capture_output=True, text=True
    )
    if done.returncode:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(done.stderr.strip())
    return Path(done.stdout.strip())


def page_in_browser(url: str, folder: Path) -> str:
    """The document that a browser has made of the page, as HTML. folder: for what it leaves behind."""
    command, environment = viewers.browser(prepared())
    done = subprocess.run(
        [*command, f"--user-data-dir={folder / 'browser'}", "--dump-dom", url],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Prometheus:
    """A server that scrapes."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now. What is no query is an HTTPError."""
        answer = json.loads(get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> dict[str, str]:
        """Alerts by name: ok, err, or unknown while they were not evaluated."""
        groups = json.loads(get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def until(self, what: str, look: Callable[["Prometheus"], T]) -> T:
        """The first true value of `look`."""
        return wait_for(f"Prometheus: {what}", lambda: look(self), 60, 0.2)


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, Mapping[str, str]], rules: Path) -> Iterator[Prometheus]:
    """targets: by address, the labels that a PodMonitor would give them. rules: a file of alerts."""
    static = [{"targets": [address], "labels": dict(labels)} for address, labels in targets.items()]
    config = {
        "global": {"scrape_interval": SCRAPED, "evaluation_interval": SCRAPED},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "kvpool", "static_configs": static}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        viewers.prometheus(prepared()), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for("Prometheus is ready", lambda: get(f"{url}/-/ready") is not None, 60, 0.1)
            yield Prometheus(url)
        finally:
            server.terminate()
            server.wait(30)
