"""Bytes of a partition that are in use, by the tables of its file system if these can be read."""
