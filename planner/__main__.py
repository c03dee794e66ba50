"""``python -m planner`` is the command ``planner``."""

from planner.cli.main import main

if __name__ == "__main__":
    main()
