"""A node on its way: what it does next, where it may boot, whose fault a failure is."""
