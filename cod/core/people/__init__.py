"""Parts that several flows about people share: POSIX numbers, and a directory's answers."""
