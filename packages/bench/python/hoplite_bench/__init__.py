"""Hoplite beside other systems, measured. Every answer is verified before it is timed, and a debug build is refused.

`lab` has hosts to measure on, and to play with; `cli` the commands of both.
"""
