"""A device's process that may have a few queue pairs alone."""

from kvpool_agent.peer.rdma import process

LINKS = 2


if __name__ == "__main__":
    process.MAX_LINKS = LINKS
    process.main()
