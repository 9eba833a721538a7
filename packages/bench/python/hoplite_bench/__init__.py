"""Benchmarks of Hoplite and other systems. Every result is verified before its time counts; debug builds are refused.

`lab` emulates hosts to measure on; `cli` has the commands of both.
"""
