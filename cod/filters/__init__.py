"""Ranges and filters: the language by which people select nodes. The functions here turn text into
a tree, and use neither the database nor a server."""
