"""Pages of an agent's work on demand while its node is out of use: captures and burn-ins."""
