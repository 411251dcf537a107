"""The server on a host: what it has there, its parts, and their processes."""
