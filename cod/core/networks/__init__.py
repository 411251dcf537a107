"""A vcluster on the wire: its address blocks, VLAN and switch ports, and its zone."""
