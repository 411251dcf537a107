"""Cost and emissions of energy by the hour, and placement by them."""
