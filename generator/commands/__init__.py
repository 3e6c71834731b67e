"""The commands beyond build and check, one a module."""
