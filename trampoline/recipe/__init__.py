"""The ramdisk's recipe, for the build machine. Nothing of it is in the ramdisk."""
