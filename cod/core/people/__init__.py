"""What several flows do with people: POSIX numbers, and what a directory tells of them."""
