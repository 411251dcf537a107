"""A lab's COD servers and the database that they share: each a host of its own on the lab's
network."""
