"""`hoplite top`: `picture` turns frames into tables, `app` shows them in a terminal."""
