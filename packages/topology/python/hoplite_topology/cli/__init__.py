"""Command `hoplite topology`, which the entry point of this package adds to `hoplite`."""
