"""`python -m benchmarks.results`: see `command.py`."""

import sys

from benchmarks.results.command import main

if __name__ == "__main__":
    sys.exit(main())
