"""Agents that run code of a test before their own."""

from pathlib import Path

from replica import Replica

# the worker stands still after so many rows of a store, where the file is there; the thread that copies may outrun the
# signal, so it waits until the file is gone
STOPS_IN_A_STORE = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    import os, signal, time
    from kvpool_agent.flows import store
    copy, rows = store.copy, []
    def stopping(*arguments):
        if os.path.exists({path!r}):
            rows.append(arguments)
            if len(rows) > {rows}:
                os.kill(os.getpid(), signal.SIGSTOP)
                while os.path.exists({path!r}):
                    time.sleep(0.001)
                rows.clear()
        copy(*arguments)
    store.copy = stopping
"""


def patch(replica: Replica, code: str) -> None:
    """All processes of its agent run this code before their own, from their next start on."""
    site = replica.folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(code)
    replica.agent_entry = (
        "-c",
        f"import os, sys; os.environ['PYTHONPATH'] += ':{site}'; sys.path.append('{site}'); import sitecustomize; "
        "from kvpool_agent import supervisor; supervisor.main()",
    )


def stop_in_a_store(replica: Replica, rows: int) -> Path:
    """From its next start on its worker stands still (SIGSTOP) after so many rows of a store where the file is there
    that is returned, and copies no more before that is gone."""
    file = replica.folder / "stop-in-a-store"
    patch(replica, STOPS_IN_A_STORE.format(path=str(file), rows=rows))
    return file
