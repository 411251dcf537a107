"""Ranges and filters: the language in which people say which nodes they mean. Text in, a tree out:
nothing here asks a database or a server."""
