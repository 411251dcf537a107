"""Resources of the network: names of nodes, switches and their ports."""
