"""`python -m hoplite.tools.cli`: the `hoplite` command of this very interpreter."""

from hoplite.tools.cli import main

if __name__ == "__main__":
    main()
