"""Networks of isolated vclusters: the server's interfaces in them, and the services it runs
there."""
