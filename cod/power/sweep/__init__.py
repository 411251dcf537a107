"""Looking for BMCs on a network: which there are, and of which systems they tell."""
