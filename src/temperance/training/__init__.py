"""Training for honest confidence: networks, the training loop, and classifiers that are trained again."""

from temperance.training.engine import train
from temperance.training.features import Features, extract_features, read_features, write_features
from temperance.training.freezing import ProgressiveFreezing
from temperance.training.heads import HEADS, Head, load_head, make_head
from temperance.training.job import Job, open_run, read_job
from temperance.training.networks import NETWORKS, Network, make_network
from temperance.training.predict import predict
from temperance.training.recipe import RECIPES, Recipe
from temperance.training.retrain import Retrained, retrain
from temperance.training.run import Run, read_run
from temperance.training.split import Split, split

__all__ = [
    "HEADS",
    "NETWORKS",
    "RECIPES",
    "Features",
    "Head",
    "Job",
    "Network",
    "ProgressiveFreezing",
    "Recipe",
    "Retrained",
    "Run",
    "Split",
    "extract_features",
    "load_head",
    "make_head",
    "make_network",
    "open_run",
    "predict",
    "read_features",
    "read_job",
    "read_run",
    "retrain",
    "split",
    "train",
    "write_features",
]
