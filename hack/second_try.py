"""Runs one of the suites' commands. Where a few tests fail, those run a second time, once.

A suite with real engines, kubelets and networks meets moments that no wait was written for. A test that fails and then
passes is unsteady: the suite goes on, and its name is told at the very end, since the cause is a defect all the same,
of the test or of the product. What fails twice has failed, and so has a suite of which more than MOST tests fail.
"""

import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST = 3
SUMMARY = re.compile(r"(?:FAILED|ERROR) (\S+?\.py::.+?)(?: - .*)?")
TESTS_FAILED = 1  # pytest's exit status where it ran to its end
LAST_WORDS_SECONDS = 5.0  # what a process that has ended left in the pipe; others may hold its other end open


@dataclass(frozen=True)
class Ran:
    """Whether all passed in the end, and which tests only the second time."""

    passed: bool
    unsteady: tuple[str, ...] = ()


def failed_in(output: str) -> list[str]:
    """The tests that pytest's summary names, each once, in its order."""
    found = (SUMMARY.fullmatch(line.rstrip()) for line in output.splitlines())
    return list(dict.fromkeys(match[1] for match in found if match))


def run(command: Sequence[str], options: int, *, folder: Path, environment: Mapping[str, str], out: BinaryIO) -> Ran:
    """options: how many words of the command say how tests are run; the others say which ones. 0: it is run once."""
    code, output = _run(command, folder, environment, out)
    failed = failed_in(output)
    if code != TESTS_FAILED or not options or not 0 < len(failed) <= MOST:
        return Ran(code == 0)
    out.write(f"== a second time: {', '.join(failed)}\n".encode())
    again, _ = _run([*command[:options], *failed], folder, environment, out)
    return Ran(again == 0, tuple(failed) if again == 0 else ())


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], out: BinaryIO) -> tuple[int, str]:
    """Its exit status, and what it has printed, which is passed on as it comes."""
    printed = bytearray()

    def pass_on(pipe: BinaryIO) -> None:
        while chunk := pipe.read(65536):
            printed.extend(chunk)
            out.write(chunk)
            out.flush()

    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    )
    reader = threading.Thread(target=pass_on, args=[process.stdout], daemon=True)
    reader.start()
    code = process.wait()
    reader.join(LAST_WORDS_SECONDS)
    return code, printed.decode(errors="replace")
