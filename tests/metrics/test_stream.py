"""Streams: the same numbers as the whole, in constant memory, across processes, beyond what float32 can count."""

import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest
import torch

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import METRICS, Metric, classwise_ece, ece
from temperance.metrics.stream import Stream


def feed(seed: int) -> Stream:
    logits, labels = random_predictions(500, 5, seed)
    stream = Stream(ece, n_bins=10)
    stream.update(logits, labels, from_logits=True)
    return stream


def test_a_name_is_not_a_metric() -> None:
    with pytest.raises(InputError, match=r"metric must be one of temperance\.metrics, .* got 'ece'"):
        Stream("ece")  # type: ignore[arg-type]


def test_streams_of_two_processes_add() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        first, second = feed(0), pool.apply(feed, (1,))
    logits, labels = zip(*(random_predictions(500, 5, seed) for seed in (0, 1)), strict=True)
    whole = ece(torch.cat(logits), torch.cat(labels), from_logits=True, n_bins=10)
    assert (first + second).value == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("name", [*METRICS.names, "ece:n_bins=7"])
def test_streams_survive_pickling(name: str) -> None:
    stream = Stream(METRICS[name])
    logits, labels = random_predictions(30, 3)
    stream.update(logits, labels, from_logits=True)
    assert pickle.loads(pickle.dumps(stream)).value == stream.value


@pytest.mark.parametrize("metric", [ece, classwise_ece])
def test_a_sum_of_streams_stays_as_it_is_when_one_goes_on(metric: Metric) -> None:
    first, empty = Stream(metric), Stream(metric)
    for seed in range(3):
        first.update(*random_predictions(50, 5, seed), from_logits=True)
    both = first + empty
    before = both.value
    first.update(*random_predictions(50, 5, 3), from_logits=True)
    assert both.value == before


def test_only_like_streams_add() -> None:
    with pytest.raises(InputError, match="same metric"):
        Stream(ece) + Stream(classwise_ece)
    with pytest.raises(InputError, match="same settings"):
        Stream(ece, n_bins=10) + Stream(ece, n_bins=15)


def test_an_empty_stream_says_so() -> None:
    with pytest.raises(InputError, match="seen no predictions"):
        _ = Stream(ece).value


def test_other_numbers_of_classes_do_not_add() -> None:
    stream = Stream(classwise_ece)
    stream.update([[0.5, 0.5]], [0])
    with pytest.raises(InputError, match="do not add"):
        stream.update([[0.5, 0.25, 0.25]], [0])


def test_a_refused_update_leaves_the_stream_as_it_was() -> None:
    stream = Stream(ece)
    stream.update([[0.9, 0.1]], [0])
    before = stream.value
    with pytest.raises(InputError):
        stream.update([[2.0, 3.0]], [0])
    assert stream.value == before


@pytest.mark.parametrize("metric", METRICS, ids=METRICS.names)
def test_a_piece_in_which_no_sample_counts_changes_nothing(metric: Metric) -> None:
    logits, labels = random_predictions(30, 3)
    ignored = torch.full_like(labels, 255)
    stream = Stream(metric)
    stream.update(logits, ignored, from_logits=True, ignore_index=255)
    with pytest.raises(InputError, match="seen no predictions"):
        _ = stream.value
    stream.update(logits, labels, from_logits=True, ignore_index=255)
    stream.update(logits, ignored, from_logits=True, ignore_index=255)
    stream.update(logits, labels, from_logits=True, weights=torch.zeros(30))
    assert stream.value == metric(logits, labels, from_logits=True)
    with pytest.raises(InputError):
        stream.update(logits[:29], ignored, from_logits=True, ignore_index=255)


LONG_RUN = """
import torch
from temperance.metrics import ece
from temperance.metrics.stream import Stream

def peak():  # kilobytes; getrusage would count the parent's memory too
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

def chunk(i):  # the same two million rows each time, at another confidence: the sum is known exactly
    confidence = 0.50 + (i % 15 + 0.5) / 30
    probs = torch.tensor([confidence, 1 - confidence], dtype=torch.float32).expand(2_000_000, 2).contiguous()
    labels = (torch.arange(2_000_000) % 4 == 0).long()
    return probs, labels

stream = Stream(ece)
for i in range(5): stream.update(*chunk(i))  # until memory that is freed and taken again has settled
before = peak()
for i in range(5, 15): stream.update(*chunk(i))
grown = peak() - before
each = [float(torch.tensor(0.50 + (i + 0.5) / 30, dtype=torch.float32)) for i in range(15)]
bins = {}
for c in each: bins.setdefault(-int(-c * 15 // 1), []).append(c)
exact = sum(abs(0.75 * len(cs) - sum(cs)) for cs in bins.values()) / 15
print(int(stream.stats.count.sum()), grown, abs(stream.value - exact))
"""


@pytest.mark.slow
def test_thirty_million_samples_exactly_in_constant_memory() -> None:
    # So that what is freed goes back to the system at once, and the peak is what is in use.
    around = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576"}
    found = subprocess.run([sys.executable, "-c", LONG_RUN], capture_output=True, text=True, check=True, env=around)
    count, grown_kilobytes, error = found.stdout.split()
    assert int(count) == 30_000_000 > 2**24
    assert int(grown_kilobytes) < 5_000
    assert float(error) < 1e-12
