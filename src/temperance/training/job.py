"""A training as the command line or a TOML file describes it, and how a finished one is opened again."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from temperance.data import ImageData, read_images
from temperance.errors import DeviceError, InputError, known_settings, plural
from temperance.files import reading
from temperance.predictions import read_pair
from temperance.progress import Progress, no_progress
from temperance.registry import parse_entry
from temperance.settings import check_settings
from temperance.training.balanced import balanced
from temperance.training.criterion import as_loss
from temperance.training.engine import EachEpoch, no_line, train
from temperance.training.networks import NETWORKS, make_network
from temperance.training.processes import local_device, process_group
from temperance.training.randomness import own_randomness
from temperance.training.recipe import Recipe
from temperance.training.run import Run, read_about, read_run

# The options of `read_images` that change which data is read. Those about where and how fast are not part of a job.
DATA_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(read_images).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
    and name not in ("download", "cache", "workers", "in_memory", "progress")
)
RECIPE_OPTIONS = tuple(f.name for f in fields(Recipe))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training: the data, the network, the loss and the recipe.

    data          what `read_images` reads: a file, a folder or the name of a data set
    network       a name that `temperance list networks` shows, with settings as name:setting=value
    loss          a name that `temperance list losses` shows, with settings
    data_options  how the data is read, such as val_fraction
    """

    data: str
    network: str = "resnet18"
    loss: str = "cross-entropy"
    recipe: Recipe = field(default_factory=Recipe)
    data_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A wrong loss or network is refused before any data is read.
        as_loss(self.loss, n_samples=1)
        name, settings = parse_entry(self.network)
        check_settings(name, NETWORKS[name].settings, settings)

    @classmethod
    def of(cls, **settings: Any) -> Job:
        """A job from one flat set of settings, as in a TOML file: its own, the data's and the recipe's.

        >>> Job.of(data="digits", network="small-cnn", epochs=3, val_fraction=0.2).recipe.epochs
        3
        """
        own = ("data", "network", "loss", "preset")
        known_settings("a training", settings, (*own, *RECIPE_OPTIONS, *DATA_OPTIONS))
        if "data" not in settings:
            raise InputError("a training needs data: a file, a folder or the name of a data set")
        # TOML has no value for nothing, so it is written as on the command line.
        recipe = {
            name: None if value == "none" else value for name, value in settings.items() if name in RECIPE_OPTIONS
        }
        return cls(
            **{name: str(settings[name]) for name in own[:3] if name in settings},
            recipe=Recipe.of(settings.get("preset"), **recipe),
            data_options={name: value for name, value in settings.items() if name in DATA_OPTIONS},
        )

    def read_data(self, **how: Any) -> ImageData:
        """Read the data; `download` and `progress` go to `read_images`."""
        return read_images(self.data, **self.data_options, **how)

    def make_network(self, data: ImageData) -> nn.Module:
        """A new network for these images; its weights come from the job's seed."""
        return self.network_for(data.train.shape, data.k)

    def network_for(self, shape: tuple[int, int, int], k: int) -> nn.Module:
        """A new network for images of this shape (height, width, channels) and k classes."""
        height, _, channels = shape
        with own_randomness(torch.device("cpu"), self.recipe.seed):
            network = make_network(self.network, classes=k, image_size=height, channels=channels)
            return network if self.recipe.balance is None else balanced(network, self.recipe.balance)

    def run(
        self,
        folder: str | Path,
        *,
        device: str = "cpu",
        resume: bool = False,
        download: bool = False,
        progress: Progress = no_progress,
        each_epoch: EachEpoch = no_line,
    ) -> Run:
        """Train, and write everything to a folder."""
        place = usable_device(device)
        with process_group(place):
            data = self.read_data(download=download, progress=progress)
            network = self.make_network(data).to(place)
            return train(
                network,
                data,
                self.loss,
                self.recipe,
                folder=folder,
                resume=resume,
                details={"job": self.settings()},
                progress=progress,
                each_epoch=each_epoch,
            )

    def settings(self) -> dict[str, Any]:
        """The settings from which `Job.of` makes the same job."""
        return {
            "data": self.data,
            "network": self.network,
            "loss": self.loss,
            **self.data_options,
            **asdict(self.recipe),
        }


def read_job(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, for `Job.of`."""
    with reading(path):
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))


def open_run(folder: str | Path, *, data: str | None = None, device: str = "cpu") -> tuple[Run, ImageData]:
    """A finished run with its network, and its data; `data` is where the data is now, if it has moved."""
    job = _job_of(Path(folder), data)
    found = job.read_data()
    return read_run(folder, job.make_network(found).to(usable_device(device))), found


def open_network(folder: str | Path, shape: tuple[int, int, int], *, device: str = "cpu") -> Run:
    """A finished run with its network, for other images of this shape (height, width, channels).

    The data that it was trained on need not be there.
    """
    place = Path(folder)
    job, channels = _job_of(place), len(read_about(place)["mean"])
    if shape[2] != channels:
        raise InputError(
            f"the network in {folder} takes images of {plural(channels, 'channel')}; these have {shape[2]}"
        )
    _, test = read_pair(place / "predictions.npz")
    return read_run(folder, job.network_for(shape, test.k).to(usable_device(device)))


def read_for(folder: str | Path, source: str, *, size: int | None = None, **how: Any) -> ImageData:
    """Images for a finished run: those it was trained on are split as in its training, and all are resized as there.

    size  another height and width; `download` and `progress` go to `read_images`
    """
    job = _job_of(Path(folder))
    own = Path(source).name == Path(job.data).name  # wherever the data is now
    options = {name: value for name, value in job.data_options.items() if own or name == "size"}
    return read_images(source, **(options if size is None else {**options, "size": size}), **how)


def _job_of(place: Path, data: str | None = None) -> Job:
    """The job of a finished run; `data` is where its images are now, if they have moved."""
    about = read_about(place)
    if "job" not in about["details"]:
        raise InputError(f"{place} was trained from Python: read_run(folder, network) opens it")
    return Job.of(**{**about["details"]["job"], **({"data": data} if data else {})})


def usable_device(device: str) -> torch.device:
    """The device of this name, if it can be used."""
    try:
        chosen = local_device(device)
        torch.zeros((), device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(f"the device {device!r} cannot be used here: {reason}") from None
    return chosen
