"""Bytes of a partition that are in use: by its file system's own tables where these are known."""
