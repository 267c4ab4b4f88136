"""The credentials of the external store: files of a mounted Secret, which may come later and change at any time."""

from pathlib import Path

from kvpool_contract.external import STORE_AUTHORITIES_FILE

MAX_CREDENTIAL = 4096


class Mounted:
    """folder: where the Secret is mounted, empty where there is none."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def read(self, name: str) -> str:
        """What the entry holds now, without the end of its line; empty where it is not there."""
        if self._folder is None:
            return ""
        try:
            with (self._folder / name).open("rb") as opened:
                return opened.read(MAX_CREDENTIAL).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return ""

    @property
    def authorities(self) -> str | None:
        """The file of authorities; None where the system's are to be trusted."""
        file = self._folder / STORE_AUTHORITIES_FILE if self._folder else None
        return str(file) if file is not None and file.exists() else None
