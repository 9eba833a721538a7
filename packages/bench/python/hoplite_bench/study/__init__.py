"""The study: which library is fastest for which operation, in which container set-up.

`matrix.py` decides what is measured, `run.py` measures it as the bench does, and the other modules turn the rows into a
report next to the figures of the published study. They do not depend on how a row was measured.
"""
