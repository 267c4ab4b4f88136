"""`python -m kvpool_cli` is the `kvpool` command, also where its script is not installed."""

from kvpool_cli.main import main

if __name__ == "__main__":
    main()
