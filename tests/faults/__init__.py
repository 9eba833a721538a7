"""Fault injection in a lab: hosts are killed, frozen and disconnected while objects are in transfer.

`python -m faults.matrix` injects one fault at a time, at a chosen place and moment. `python -m faults.chaos` injects
many at random. `python -m faults.abuse` attacks without the token. All of them verify every byte. They have the same
requirements as a lab.
"""
