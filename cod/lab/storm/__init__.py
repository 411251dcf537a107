"""Many machines switched on within seconds, as protocols (`cod lab storm`): what a server makes of
them, and what each costs it."""
