"""`python3 -m kvpool_agent`: the sidecar's entry point."""

from kvpool_agent.supervisor import main

if __name__ == "__main__":
    main()
