"""Training for honest confidence: networks, recipes and the training loop."""

from temperance.training.balanced import Balanced
from temperance.training.engine import train
from temperance.training.freezing import ProgressiveFreezing
from temperance.training.job import Job, open_network, open_run, read_for, read_job
from temperance.training.networks import NETWORKS, Network, make_network
from temperance.training.prediction import predict
from temperance.training.recipe import RECIPES, Recipe
from temperance.training.run import Run, read_run

__all__ = [
    "NETWORKS",
    "RECIPES",
    "Balanced",
    "Job",
    "Network",
    "ProgressiveFreezing",
    "Recipe",
    "Run",
    "make_network",
    "open_network",
    "open_run",
    "predict",
    "read_for",
    "read_job",
    "read_run",
    "train",
]
