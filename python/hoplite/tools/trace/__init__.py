"""Traces: what nodes did, as spans of time, in formats of other tools."""
