"""What runs on the library: the `hoplite` command, the demo, the bench, and the lab, which makes hosts on one machine.

Tools use what the library offers to every program; the library imports none of them.
"""
