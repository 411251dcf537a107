"""Work on nodes that several flows share: transitions, grants, places to boot, blame of failures,
and more."""
