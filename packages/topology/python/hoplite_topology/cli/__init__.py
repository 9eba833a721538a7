"""`hoplite topology`, which `hoplite` finds by the entry point of this package."""
