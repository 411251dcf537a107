"""What energy costs and emits by the hour, and what is placed by it."""
