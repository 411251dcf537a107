"""`make demo`: machines of a lab become members of vclusters, shown live, and recorded in a
report."""
