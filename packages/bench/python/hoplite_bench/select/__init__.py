"""Chooses a library for each operation and size in one environment, by measuring the candidates there."""
