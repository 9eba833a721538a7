"""`hoplite bench` and `hoplite lab`, which `hoplite` finds by the entry points of this package."""
