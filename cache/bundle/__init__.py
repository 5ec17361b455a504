"""Many entries in one file that can be carried to another machine."""
