"""Whole jobs on files and arrays: measure, compare, tell unfamiliar data apart, and say what the numbers mean."""
