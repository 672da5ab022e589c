"""Training for honest confidence: networks, the training loop, and classifiers that are trained again."""

from temperance.training.engine import train
from temperance.training.job import Job, open_run, read_job
from temperance.training.predict import predict
from temperance.training.recipe import RECIPES, Recipe
from temperance.training.run import Run, read_run

__all__ = ["RECIPES", "Job", "Recipe", "Run", "open_run", "predict", "read_job", "read_run", "train"]
