"""Where the cluster comes from: one that the caller names, else the testbed, else none.

`KVPOOL_E2E_KUBECONFIG` names a cluster by its kubeconfig, never the ambient default one. Its nodes must be this machine
(engines mount their environment from it, and a test kills a process on it) and must hold the images already, under the
names of `images.py`; kvpool must not be in it. The testbed is a folder with `cluster.py`, named by `KVPOOL_TESTBED` or
found beside the repository.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = ("containerd", "runc", "iptables", "conntrack", "ip", "debootstrap")
CLIENTS = ("kubectl", "helm")
FILES = (Path("/bin/busybox"), Path("/usr/lib/cni/bridge"))


@dataclass(frozen=True)
class Provided:
    """A running cluster: its kubeconfig, the folder of kubectl and helm, and the testbed's own folder, where it is one
    of the testbed's: then images have to be loaded into it, and its nodes may be killed."""

    kubeconfig: Path
    programs: Path
    folder: Path | None = None

    @property
    def kubectl(self) -> str:
        return str(self.programs / "kubectl")


def testbed() -> Path:
    return Path(os.environ.get("KVPOOL_TESTBED") or REPOSITORY.parent / "shared" / "testbed")


def named() -> str:
    """The kubeconfig of a cluster that the caller names; empty without."""
    return os.environ.get("KVPOOL_E2E_KUBECONFIG", "")


def lacking() -> str:
    """Why no cluster can be had here, in one line; empty when one can."""
    if named():
        return next((f"{name} is not installed" for name in CLIENTS if not shutil.which(name)), "")
    if not (testbed() / "cluster.py").exists():
        return "no cluster: set KVPOOL_E2E_KUBECONFIG, or KVPOOL_TESTBED to the folder of cluster.py"
    if os.geteuid() != 0:
        return "the testbed starts containers: run as root"
    programs = [name for name in PROGRAMS if not shutil.which(name)]
    missing = programs + [str(path) for path in FILES if not path.exists()]
    return f"{', '.join(missing)} not installed: run hack/cluster_packages.sh" if missing else ""


@contextlib.contextmanager
def provide(level: str = "node") -> Iterator[Provided]:
    """A cluster for the session, with two nodes or (level `control`) without. One that was started here is always taken
    down: containers outlive processes."""
    if kubeconfig := named():
        kubectl = shutil.which("kubectl")
        assert kubectl
        yield Provided(Path(kubeconfig), Path(kubectl).parent)
        return
    folder = Path(tempfile.mkdtemp(prefix="kvpool-cluster-"))
    try:
        said = _testbed("up", folder, "--level", level, "--nodes", "2").splitlines()
        values = dict(line.split("=", 1) for line in said if "=" in line)
        yield Provided(Path(values["KUBECONFIG"]), Path(values["PATH"].partition(":")[0]), folder)
    finally:
        _testbed("down", folder)
        shutil.rmtree(folder, ignore_errors=True)


def load_image(cluster: Provided, archive: Path) -> None:
    assert cluster.folder, "images of a named cluster are its owner's"
    _testbed("load", cluster.folder, str(archive))


def kill_node(cluster: Provided, number: int) -> None:
    """Kubelet, containerd and every container of node `node-NUMBER`, at once; nothing brings it back."""
    assert cluster.folder, "only the testbed's nodes are killed"
    _testbed("kill-node", cluster.folder, str(number))


@contextlib.contextmanager
def api_server_away(cluster: Provided) -> Iterator[None]:
    """The API server stands still: whoever asks it waits, and whoever watches it hears nothing."""
    assert cluster.folder, "only the testbed's API server is stopped"
    lines = (cluster.folder / "pids").read_text().splitlines()
    (number,) = (int(line.split()[1]) for line in lines if line.split()[0] == "kube-apiserver")
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(number, signal.SIGCONT)


@contextlib.contextmanager
def apart(cluster: Provided, one: str, other: str) -> Iterator[None]:
    """Nothing gets from either of two pods' addresses to the other, and neither is told so."""
    assert cluster.folder, "only the testbed's network is cut"
    rules = [("FORWARD", "-s", a, "-d", b, "-j", "DROP") for a, b in ((one, other), (other, one))]
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-D", *rule], check=False)


def _testbed(action: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(testbed() / "cluster.py"), action, *arguments, "--dir", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return done.stdout


def prepared(what: str) -> Path:
    """Path of a cached part (engine, model, debian); made if it isn't there."""
    command = [sys.executable, str(REPOSITORY / "hack" / "prepare.py"), what]
    return Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
