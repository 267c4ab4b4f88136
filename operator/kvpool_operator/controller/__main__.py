"""`python -m kvpool_operator.controller` is the controller."""

from kvpool_operator.controller.main import main

if __name__ == "__main__":
    main()
