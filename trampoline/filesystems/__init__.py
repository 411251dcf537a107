"""Which bytes of a partition are in use: by its file system's own tables where these are known."""
