"""Runs a command where there are two RDMA devices made of software: in a virtual machine over this machine's files.

    machine.py [--minutes 6] [--files FOLDER] COMMAND ...

Its root is the host's, not writable, below one in memory: the same interpreters and libraries run inside, and nothing
on the host can be changed. Output and exit status are the command's. Two devices, rxe0 (10.77.0.1) and rxe1
(10.77.0.2), lie on the two ends of one virtual cable, so that packets between them can be lost and delayed. What
the command writes into $KVPOOL_RDMA_FILES is copied to FOLDER. Exit status 125: the machine did not come up.

The emulator is only as good as the host's processor lets it: bytes and faults can be judged here, speed can't.
"""

import argparse
import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
sys.path.insert(0, str(REPOSITORY / "hack"))

import prepare  # noqa: E402
import soft_rdma  # noqa: E402

NOT_UP = 125
MEMORY_MIB = 4096
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# The emulator copies with `rep movs` byte by byte, and computes PCLMULQDQ, with which the driver's checksums are made,
# out of line: a third of the speed.
EMULATED_CPU = "max,-erms,-fsrm,-pclmulqdq"

GUEST = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PATH HOME
finish() { echo "$1" > /job/status; sync; busybox poweroff -f; }
port() { for each in /sys/class/virtio-ports/*; do [ "$(cat "$each/name")" = "$1" ] && echo "/dev/${each##*/}"; done; }
{
hostname rdma
ulimit -l unlimited
ip link set lo up
ip link add cable0 mtu 9000 type veth peer name cable1 mtu 9000
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.rmem_max=16777216 net.core.rmem_default=4194304 \\
    net.core.wmem_max=16777216 net.core.netdev_max_backlog=10000
# two addresses of one machine: without these its packets to itself would never leave it
for end in 0 1; do
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        sysctl -qw "net.ipv4.conf.cable$end.$setting"
    done
    sysctl -qw "net.ipv6.conf.cable$end.accept_dad=0"
    ip address add "10.77.0.$((end + 1))/24" dev "cable$end"
    ip link set "cable$end" up
done
for end in 0 1; do rdma link add "rxe$end" type rxe netdev "cable$end" || finish 125; done
mkdir -p /dev/infiniband
for each in /sys/class/infiniband_verbs/uverbs*; do
    [ -e "/dev/infiniband/${each##*/}" ] || mknod -m 666 "/dev/infiniband/${each##*/}" c $(tr : ' ' < "$each/dev")
done
mount -t cgroup2 none /sys/fs/cgroup
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/job
echo $$ > /sys/fs/cgroup/job/cgroup.procs
mkdir -p /pyverbs && ln -sfn /usr/lib/python3/dist-packages/pyverbs /pyverbs/pyverbs
} > /job/set-up.log 2>&1
touch /job/up
setsid bash /job/command.sh < /dev/null > "$(port out)" 2> "$(port err)"
status=$?
dmesg > /job/files/dmesg.log
finish $status
"""


def emulated() -> bool:
    """Whether the processor must be emulated. A virtual machine that hides its processor's own support may open
    /dev/kvm all the same, and then no stock kernel boots."""
    flags = re.search(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    supported = flags is not None and {"vmx", "svm"} & set(flags[0].split())
    return not (supported and os.access("/dev/kvm", os.R_OK | os.W_OK))


def command_line(parts: Path, job: Path, descriptors: dict[str, int]) -> tuple[list[str], dict[str, str]]:
    """QEMU's command line and environment. descriptors: of the ports for output and errors."""
    command, environment = soft_rdma.emulator_command(parts)
    slow = emulated()
    options = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable" + (" clearcpuid=rep_good" if slow else "")
    command += [
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,hpet=off",
        "-accel", "tcg,thread=multi" if slow else "kvm", "-cpu", EMULATED_CPU if slow else "host",
        "-smp", str(min(4, os.cpu_count() or 1)), "-m", str(MEMORY_MIB),
        "-kernel", str(parts / "vmlinuz"), "-initrd", str(parts / "initramfs"), "-append", options,
        "-serial", f"file:{job}/console.log", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
    ]  # fmt: skip
    for name, descriptor in descriptors.items():  # a port on standard input would close where that ends
        command += [
            "-chardev", f"file,id={name},path=/proc/self/fd/{descriptor},append=on",
            "-device", f"virtserialport,chardev={name},name={name}",
        ]  # fmt: skip
    for tag, path, access in (("host", Path("/"), "on"), ("layer", parts / "layer", "on"), ("job", job, "off")):
        command += [
            "-fsdev", f"local,id={tag},path={path},security_model=none,readonly={access},multidevs=remap",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
        ]  # fmt: skip
    return command, environment


def write_job(job: Path, command: Sequence[str]) -> None:
    (job / "files").mkdir()
    kept = {k: v for k, v in os.environ.items() if re.fullmatch(r"[A-Za-z_]\w*", k) and k not in ("_", "TMPDIR")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled there would be compiled anew by each process
    path = ":".join(filter(None, [os.environ.get("PYTHONPATH"), "/pyverbs"]))
    kept |= {"PYTHONPATH": path, "KVPOOL_RDMA_FILES": "/job/files", "KVPOOL_RDMA_DEVICES": "rxe0,rxe1"}
    kept |= {"KVPOOL_PATIENCE": "6" if emulated() else "1"}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    lines += [f"cd {shlex.quote(str(Path.cwd()))}", f"exec {shlex.join(command)}"]
    (job / "command.sh").write_text("\n".join(lines) + "\n")
    (job / "guest.sh").write_text(GUEST)


def pump(descriptor: int, target: int) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 1 << 16):
            os.write(target, data)


def run(command: Sequence[str], minutes: float, files: Path | None) -> int:
    parts = prepare.rdma()
    job = Path(tempfile.mkdtemp(prefix="kvpool-rdma-"))
    try:
        write_job(job, command)
        ports = {name: os.pipe() for name in ("out", "err")}
        line, environment = command_line(parts, job, {name: writing for name, (_, writing) in ports.items()})
        prctl = ctypes.CDLL(None).prctl  # the machine ends with this process, however that ends
        process = subprocess.Popen(
            line, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            pass_fds=[writing for _, writing in ports.values()],
            preexec_fn=lambda: prctl(1, signal.SIGKILL),
        )  # fmt: skip
        pumps = []
        for target, (reading, writing) in enumerate(ports.values(), 1):
            os.close(writing)
            pumps.append(threading.Thread(target=pump, args=(reading, target), daemon=True))
            pumps[-1].start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.kill())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60 * minutes)
        late = process.poll() is None
        process.kill()
        process.wait()
        for each in pumps:
            each.join(2)
        return outcome(job, late, minutes, files)
    finally:
        shutil.rmtree(job, ignore_errors=True)


def outcome(job: Path, late: bool, minutes: float, files: Path | None) -> int:
    if files is not None:
        shutil.copytree(job / "files", files, dirs_exist_ok=True)
    if (job / "status").exists():
        return int((job / "status").read_text())
    if late:
        print(f"machine: the command has not ended within {minutes:g} minutes", file=sys.stderr)
    if not (job / "up").exists():
        logs = [path.read_text(errors="replace")[-3000:] for path in sorted(job.glob("*.log"))]
        print("machine: it did not come up", *logs, sep="\n", file=sys.stderr)
    return NOT_UP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--files", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.exit(run(options.command, options.minutes, options.files))


if __name__ == "__main__":
    main()
