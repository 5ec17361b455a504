"""Tools for tests of engines that use graphspec."""
