"""Observation of a cluster: what its nodes recorded, on one clock and in words. Draws nothing."""
