"""Calibrator files: safetensors for what was learnt, JSON in the header for the rest. Nothing is ever unpickled."""

import json
from pathlib import Path

from temperance.calibrators.base import Calibrator, make_calibrator
from temperance.errors import FileError
from temperance.files import check_format, read_tensors, reading, write_tensors

FORMAT = 2

# The format of a calibrator of one column of groups or none, which earlier versions can read.
ONE_COLUMN = 1


def save_calibrator(calibrator: Calibrator, path: str | Path) -> None:
    """Write a fitted calibrator to one .safetensors file."""
    header = {
        "temperance": str(ONE_COLUMN if len(calibrator.group_columns) < 2 else FORMAT),
        "method": calibrator.name,
        "classes": str(calibrator.k),
        "settings": json.dumps(calibrator.get_params(deep=False)),
        "info": json.dumps(calibrator.info),
    }
    if calibrator.class_names is not None:
        header["class_names"] = json.dumps(calibrator.class_names)
    if len(calibrator.group_columns) > 1:
        header["group_columns"] = json.dumps(calibrator.group_columns)
    elif calibrator.group_columns:
        header["group_names"] = json.dumps(calibrator.group_names)
    write_tensors(path, calibrator.state_dict(), header)


def load_calibrator(path: str | Path) -> Calibrator:
    """Read a calibrator from a file that `save` wrote."""
    with reading(path):
        tensors, header = read_tensors(path) if _starts_as_tensors(path) else ({}, {})
        if "temperance" not in header:
            raise FileError(f"{path} is not a calibrator saved by temperance")
        check_format(path, header["temperance"], FORMAT)
        found = make_calibrator(header["method"], **json.loads(header["settings"]))
        found.info = json.loads(header["info"])
        if "class_names" in header:
            found.class_names = tuple(json.loads(header["class_names"]))
        one = [json.loads(header["group_names"])] if "group_names" in header else []
        columns = json.loads(header["group_columns"]) if "group_columns" in header else one
        found.group_columns = tuple(map(tuple, columns))
        found._restore(tensors)
        found.cpu()  # a file from a device without float64 holds float32
        found.k  # noqa: B018  (raises if what it learnt is missing)
    return found


def _starts_as_tensors(path: str | Path) -> bool:
    """Whether a file starts like .safetensors, with eight bytes and then JSON, and so may be a damaged calibrator."""
    with Path(path).open("rb") as file:
        return file.read(9)[8:] == b"{"
