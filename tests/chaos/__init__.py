"""Faults of servers, machines, links, clocks, disks and databases, drawn by a seed, on real
processes: ``python -m tests.chaos --seed 1 --minutes 60``; docs/testing.md says what is checked."""
