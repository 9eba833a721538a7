"""The verbs for threads: `make twins` writes all files but this one from those of `_aio`."""
