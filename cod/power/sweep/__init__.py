"""Searches a network for BMCs, and asks them about their systems."""
