"""Commands `hoplite bench` and `hoplite lab`, which the entry points of this package add to `hoplite`."""
