"""The verbs of a client, each with its asyncio twin, and waits for several objects."""
