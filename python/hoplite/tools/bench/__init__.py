"""Measurements of this machine. Every answer is verified before it is timed, and a debug build is refused."""
