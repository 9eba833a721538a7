"""How do I wait for objects in asyncio, and cancel a wait? Each call has a twin with the suffix `_async`."""

import asyncio

import numpy as np

import hoplite


async def main() -> None:
    """Waits for three objects at once, which appear later."""
    hp = hoplite.init()
    names = [f"part/{number}" for number in range(3)]
    waiting = asyncio.gather(*(hp.get_async(name, timeout=30) for name in names))
    for number, name in enumerate(names):
        await hp.put_async(np.full(10, number), name=name)
    print([int(part[0]) for part in await waiting])  # [0, 1, 2]

    task = asyncio.create_task(hp.get_async("never/1"))
    await asyncio.sleep(0)
    task.cancel()  # the node drops the request too
    await asyncio.gather(task, return_exceptions=True)
    print("cancelled:", task.cancelled())  # cancelled: True
    await hp.delete_async(names)


asyncio.run(main())
