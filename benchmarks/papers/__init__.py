"""The tables of the five papers, run again: trainings, post-hoc studies, and what came of them."""
