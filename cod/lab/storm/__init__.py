"""Many machines switched on within seconds, as protocols (`cod lab storm`): how a server copes with
them, and what each machine costs it."""
