"""The images of the tests, without a registry: the agent's, one of an earlier agent, the operator's, and a bare Debian
with the stand-in engine.

Our parts go into the root file system by the script that the Dockerfiles run, so the images that are tested hold
what the shipped ones hold. They have the names that README uses, and so does the engine's, in place of vLLM's own. All
of them share one layer with Debian, which each node so unpacks, and throws away, once.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import earlier

from cluster.provider import REPOSITORY, Provided, load_image, named, prepared

AGENT_IMAGE = "registry.example/kvpool/agent:0.1.0"
EARLIER_IMAGE = "registry.example/kvpool/agent:earlier"
OPERATOR_IMAGE = "registry.example/kvpool/operator:0.1.0"
ENGINE_IMAGE = "docker.io/vllm/vllm-openai:v0.32.0"
BUILT = "KVPOOL_E2E_IMAGES"  # names an archive by `docker save` of agent and operator, to be tested in place of ours
IN_CLEAR = {"transport": {"tls": {"mode": "Disabled"}}}
STANDIN = ("python3", "/standin/standin_pod.py")
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALLED = "opt/kvpool"
# of Debian, what no container reads: half of what each node would have to unpack
UNNEEDED = tuple(
    f"./{path}/"
    for path in (
        *(
            "var/cache",
            "var/lib/apt",
            "usr/share/doc",
            "usr/share/locale",
            "usr/share/man",
            "usr/share/perl",
            "usr/share/zoneinfo",
            "usr/lib/apt",
        ),
        *("usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/udev"),
    )
)


@contextmanager
def in_the_making(work: Path) -> Iterator[Callable[[Provided], None]]:
    """The images are made under `work` while the cluster comes up; what it yields loads them there. A cluster that its
    owner has named holds them already."""
    if named():
        yield lambda cluster: None
        return
    with ThreadPoolExecutor(3) as pool:
        debian = pool.submit(_layer, work / "debian.tar", prepared("debian"), ".", _needed)
        ours = [pool.submit(_ours, work, part) for part in ("agent", "operator")]

        def load(cluster: Provided) -> None:
            base = debian.result()
            images = [_Image(ENGINE_IMAGE, base, _standin(work), {"Entrypoint": list(STANDIN), "Env": [SEARCH_PATH]})]
            settings = {"Env": [SEARCH_PATH, f"PYTHONPATH=/{INSTALLED}"], "User": "10001:10001"}
            layers = {reference: layer for part in ours for reference, layer in part.result().items()}
            if built := os.environ.get(BUILT):
                del layers[AGENT_IMAGE], layers[OPERATOR_IMAGE]
                load_image(cluster, Path(built))
            images += [_Image(reference, base, layer, settings) for reference, layer in layers.items()]
            load_image(cluster, _archive(work / "images.tar", images))
            shutil.rmtree(work)

        yield load


@dataclass(frozen=True)
class _Layer:
    path: Path
    digest: str


@dataclass(frozen=True)
class _Image:
    """`settings`: as in an image's configuration."""

    reference: str
    base: _Layer
    top: _Layer
    settings: dict[str, object]


def _ours(work: Path, part: str) -> dict[str, _Layer]:
    """Layers of one of our parts, by the images' names; of the agent the one of before, too."""
    root, installed = work / f"{part}-root", work / f"{part}-root" / INSTALLED
    # Debian's files are only read: links will do, where the cache lies on the same disk
    if subprocess.run(["cp", "-al", prepared("debian"), root], stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["cp", "-a", "--reflink=auto", "-f", f"{prepared('debian')}/.", root], check=True)
    script = REPOSITORY / "images" / "rootfs.sh"
    subprocess.run([script, root, part], check=True, env={**os.environ, "PYTHON": sys.executable})
    if part == "operator":
        return {OPERATOR_IMAGE: _layer(work / "operator.tar", installed, INSTALLED)}
    layers = {AGENT_IMAGE: _layer(work / "agent.tar", installed, INSTALLED)}
    # the earlier agent has the libraries of this one
    for package in earlier.unpack(work / "earlier").iterdir():
        shutil.rmtree(installed / package.name)
        package.rename(installed / package.name)
    return layers | {EARLIER_IMAGE: _layer(work / "earlier.tar", installed, INSTALLED)}


def _standin(work: Path) -> _Layer:
    folder = work / "standin"
    folder.mkdir()
    for name in ("standin_engine.py", "standin_http.py", "standin_model.py", "standin_pod.py", "standin_tenants.py"):
        shutil.copy(REPOSITORY / "tests" / "e2e" / name, folder)
    return _layer(work / "standin.tar", folder, "standin")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.startswith(UNNEEDED) else entry


def _layer(path: Path, folder: Path, place: str, keep: Callable[..., tarfile.TarInfo | None] | None = None) -> _Layer:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        layer.add(folder, arcname=place, filter=keep)
    with path.open("rb") as content:
        return _Layer(path, hashlib.file_digest(content, "sha256").hexdigest())


def _archive(path: Path, images: list[_Image]) -> Path:
    """One archive, as `docker save` writes it and `ctr images import` takes it."""
    manifest, layers = [], {}
    with tarfile.open(path, "w") as archive:

        def put(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

        for image in images:
            parts = (image.base, image.top)
            layers |= {f"{each.digest}/layer.tar": each.path for each in parts}
            roots = {"type": "layers", "diff_ids": [f"sha256:{each.digest}" for each in parts]}
            config = json.dumps(
                {"architecture": "amd64", "os": "linux", "config": image.settings, "rootfs": roots}
            ).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            put(name, config)
            names = [f"{each.digest}/layer.tar" for each in parts]
            manifest.append({"Config": name, "RepoTags": [image.reference], "Layers": names})
        put("manifest.json", json.dumps(manifest).encode())
        for name, layer in layers.items():
            archive.add(layer, arcname=name)
    return path
