"""`make demo`: machines of a lab become members of vclusters, shown live, and written down in a
report."""
