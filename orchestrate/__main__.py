"""`python -m orchestrate` is the console script."""

from orchestrate.cli import main

if __name__ == "__main__":
    main()
