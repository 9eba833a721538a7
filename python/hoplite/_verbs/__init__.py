"""The verbs of a client, each with its twin for asyncio, and what waits for several objects."""
