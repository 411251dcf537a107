"""Planted faults: how many of them the quick tests catch. See docs/decisions/0049."""
