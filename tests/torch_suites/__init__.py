"""Runs PyTorch's own tests of process groups, as its wheel ships them, against the backend "hoplite".

`python -m torch_suites --help` lists the options. The tests are not modified. Each one that Gloo passes on this machine
must pass.
"""
