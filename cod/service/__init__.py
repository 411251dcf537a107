"""The server on a host: preparation of the host, the server's parts, and the processes that run
them."""
