"""How the ramdisk is made, on the build machine. Nothing in here travels to a node."""
