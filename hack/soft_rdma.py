"""A virtual machine with RDMA devices made of software, for machines whose kernel has none: what it boots.

Debian's stock kernel holds the driver (rdma_rxe) and can mount the host's files (9p); its cloud kernel holds neither.
QEMU, the kernel, rdma-core and pyverbs come by apt as archives and are unpacked into a folder: nothing is installed on
this machine, and no root is needed. tests/e2e/rdma/machine.py boots it.
"""

import io
import lzma
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import archives
from archives import Unavailable, lacks

KERNEL = "linux-image-amd64"
# into the guest's own root, above the host's files: what tests and agents need there and the host may lack
GUEST_PACKAGES = (
    "busybox-static", "ibverbs-providers", "ibverbs-utils", "iproute2", "kmod", "libibverbs1", "libkmod2",
    "libnl-3-200", "libnl-route-3-200", "librdmacm1", "perftest", "libibumad3", "libpci3", "libpython3.11",
    "python3-pyverbs", "rdma-core",
)  # fmt: skip
EMULATOR = "qemu-system-x86"
# crc32_generic: the driver asks for it by its algorithm's name, so no module's dependencies say so
MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_rng", "veth", "sch_netem",
    "crc32_pclmul", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe",
)  # fmt: skip

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
fail() { echo "guest: $1" > /dev/console; poweroff -f; }
while read -r module; do insmod "/modules/$module.ko" || echo "guest: no $module" > /dev/console; done < /modules/order
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=524288,$3" "$1" "$2" || fail "no share $1"; }
share host /host ro,cache=loose
share layer /layer ro,cache=loose
mount -t tmpfs -o size=85% none /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/layer:/host,upperdir=/written/upper,workdir=/written/work none /root || fail "no overlay"
mkdir -p /root/proc /root/sys /root/dev /root/run /root/job
for each in proc sys dev; do mount --move /$each /root/$each; done
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts none /root/dev/pts
mount -t tmpfs none /root/dev/shm
mount -t tmpfs none /root/run
share job /root/job rw,cache=none
exec switch_root /root /bin/sh /job/guest.sh
"""


def make(path: Path) -> None:
    """Fills the folder: `vmlinuz`, `initramfs`, `layer/` and `emulator/`. Raises Unavailable."""
    if missing := lacks():
        raise Unavailable(missing)
    fetched = path / "archives"
    fetched.mkdir(parents=True)
    kernel = _kernel_package()
    emulator = archives.with_missing_libraries(EMULATOR)
    archives.download([kernel, *GUEST_PACKAGES, *emulator], fetched)
    for folder, names in (("kernel", [kernel]), ("layer", GUEST_PACKAGES), ("emulator", emulator)):
        archives.unpack(fetched, names, path / folder)
    modules = _modules(path / "kernel")
    image = next((path / "kernel" / "boot").glob("vmlinuz-*"))
    image.rename(path / "vmlinuz")
    busybox = next(p for p in (path / "layer").rglob("busybox") if p.is_file() and p.parent.name == "bin")
    (path / "initramfs").write_bytes(_initramfs(busybox.read_bytes(), modules))
    (path / "kernel-package").write_text(kernel)
    shutil.rmtree(path / "kernel")
    shutil.rmtree(fetched)


def emulator_command(path: Path) -> tuple[list[str], dict[str, str]]:
    """The beginning of QEMU's command line, and what its environment needs beside this one's."""
    root = path / "emulator"
    firmware = [part for name in ("seabios", "qemu", "ipxe") for part in ("-L", str(root / "usr/share" / name))]
    environment = {
        "LD_LIBRARY_PATH": archives.library_path(root),
        "QEMU_MODULE_DIR": str(root / "usr/lib/x86_64-linux-gnu/qemu"),
    }
    return [str(root / "usr/bin/qemu-system-x86_64"), *firmware], environment


def _kernel_package() -> str:
    depends = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True, text=True).stdout
    found = re.search(r"Depends: (linux-image-\d\S+)", depends)
    if found is None:
        raise Unavailable(f"the package {KERNEL} in apt's lists")
    return found[1]


def _modules(root: Path) -> dict[str, bytes]:
    """The driver's modules in the order in which they can be inserted."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in root.rglob("*.ko*")}
    (built_in,) = root.rglob("modules.builtin")
    there = {Path(line).stem.replace("-", "_") for line in built_in.read_text().splitlines()}
    found: dict[str, bytes] = {}

    def add(name: str, *, needed: bool) -> None:
        name = name.replace("-", "_")
        if name in found or name in there:
            return
        if name not in files:
            if needed:
                raise Unavailable(f"a kernel with the module {name}")
            return
        content = files[name].read_bytes()
        content = lzma.decompress(content) if files[name].suffix == ".xz" else content
        for other, soft in _needs(content):
            add(other, needed=not soft)
        found[name] = content

    for name in MODULES:
        add(name, needed=True)
    return found


def _needs(module: bytes) -> Iterator[tuple[str, bool]]:
    """Modules that this one wants to find, and whether it could do without."""
    for listed in re.findall(rb"\0depends=([^\0]+)", module):
        yield from ((name, False) for name in listed.decode().split(",") if name)
    for listed in re.findall(rb"\0softdep=pre: ([^\0]*)", module):
        yield from ((name, True) for name in listed.decode().partition("post:")[0].split())


def _initramfs(busybox: bytes, modules: Mapping[str, bytes]) -> bytes:
    """A cpio archive (newc) with the shell, the modules and the first program."""
    folders = ("bin", "modules", "proc", "sys", "dev", "host", "layer", "written", "root")
    entries = [(name, 0o040755, b"") for name in folders]
    entries += [("bin/busybox", 0o100755, busybox), ("init", 0o100755, INIT.encode())]
    entries += [("modules/order", 0o100644, "".join(f"{name}\n" for name in modules).encode())]
    entries += [(f"modules/{name}.ko", 0o100644, content) for name, content in modules.items()]
    archive = io.BytesIO()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        archive.write(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
        archive.write(b"\0" * (-archive.tell() % 4))
        archive.write(content)
        archive.write(b"\0" * (-archive.tell() % 4))
    return archive.getvalue()
