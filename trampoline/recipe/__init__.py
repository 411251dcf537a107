"""The ramdisk's recipe, on the build machine. Nothing in here travels to a node."""
