"""The process of an external store's server, as tests stop it, let it go on and end it."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


class StoreProcess:
    """Not begun until `_begin`. folder: for its log and for the Secret that opens it, `credentials`. tls: certificate
    and key with which it talks inside TLS, as localhost; by `ca.crt` of the credentials it is trusted."""

    def __init__(self, folder: Path, port: int, tls: tuple[Path, Path] | None) -> None:
        self._folder, self._tls = folder, tls
        self.port = port
        self.credentials = folder / "credentials"
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self, command: Sequence[str], executable: str | None = None) -> None:
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(command, executable=executable, stdout=log, stderr=log)

    @property
    def process(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            for number in (signal.SIGCONT, signal.SIGKILL):
                self._process.send_signal(number)
            self._process.wait(10)
            self._process = None
