"""`python -m hoplite.cli`: the `hoplite` command of this very interpreter."""

from hoplite.cli import main

if __name__ == "__main__":
    main()
