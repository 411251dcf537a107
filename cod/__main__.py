"""`python -m cod`, and the `cod` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from cod.cli.root import cod

    cod(prog_name="cod")


if __name__ == "__main__":
    main()
