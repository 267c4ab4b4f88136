"""Which RDMA devices a node has, as its kernel tells every container, whether that may open them or not."""

from pathlib import Path

SYSTEM_DEVICES = Path("/sys/class/infiniband")


def system_devices() -> list[str]:
    """Names of the devices; none where the kernel has no RDMA either."""
    return sorted(path.name for path in SYSTEM_DEVICES.iterdir()) if SYSTEM_DEVICES.exists() else []
