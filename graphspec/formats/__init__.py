"""Reading configs from files, with the line of every value."""
