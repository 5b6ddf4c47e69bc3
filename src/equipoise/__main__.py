"""Run the command line with ``python -m equipoise``."""

from equipoise.cli import main

if __name__ == "__main__":
    main()
