"""Matplotlib figures for papers and notebooks."""
