"""temperance makes a classifier's confidence mean what it says."""

__version__ = "0.1.0.dev0"
