"""Faults on purpose, in a lab: hosts die, freeze and are cut off while objects are on their way.

`python -m faults.matrix` breaks one thing at a time, at a place and a moment that it chooses;
`python -m faults.chaos` breaks many, by chance; `python -m faults.abuse` attacks without the token. All check every
byte. They need what a lab needs.
"""
