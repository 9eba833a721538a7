"""The verbs for asyncio, and what waits for several answers. Their twins for threads, `_sync`, are made of these files.

`make twins` writes those by leaving out `async`, `await` and the suffixes `_async`; all that differs is in `_waits`.
"""
