"""The checks of `cod doctor`, each a module whose functions yield findings."""
