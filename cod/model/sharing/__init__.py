"""Records of groups and their vclusters, requests and reservations. Attributes have the names of
their columns; `store/tables` explains each."""
