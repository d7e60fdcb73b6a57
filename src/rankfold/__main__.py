"""`python -m rankfold` is the command `rankfold`."""

from rankfold.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
