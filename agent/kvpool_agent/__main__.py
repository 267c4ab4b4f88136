"""`python3 -m kvpool_agent`: the sidecar's entry point."""

import os
import signal

if __name__ == "__main__":
    # the kernel keeps from a container's first process each signal that it does not handle: before all else, then, and
    # as long as there is nothing to end in order
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    from kvpool_agent.supervisor import main

    main()
