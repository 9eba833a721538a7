"""Tests across languages: Python and a native program share nodes, objects and clusters."""
