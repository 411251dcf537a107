"""Networks of isolated vclusters: the server's interfaces in them, and what it runs there."""
