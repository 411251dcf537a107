"""Burn-in: tests of this machine's memory, disks and network, in a given time. docs/burnin is
its page."""
