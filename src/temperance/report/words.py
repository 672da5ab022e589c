"""What a reliability diagram is about: predictions that are right, or labels that apply."""

from __future__ import annotations

from typing import NamedTuple

from temperance.jobs.evaluation import Evaluation


class Words(NamedTuple):
    """The words of a reliability diagram: its question, what the model said, what happened, and what is counted.

    event  what has that probability: a prediction is right, or a label applies
    """

    question: str
    said: str
    happened: str
    explained: str
    event: str
    row: str
    rows: str
    over: str
    under: str


OF_PREDICTIONS = Words(
    "Is the confidence right?",
    said="confidence",
    happened="accuracy",
    explained="predictions of that confidence were right",
    event="right",
    row="sample",
    rows="samples",
    over="over-confident: right less often than it says",
    under="under-confident: right more often than it says",
)
OF_LABELS = Words(
    "Are the probabilities right?",
    said="probability",
    happened="share that applies",
    explained="labels of that probability apply",
    event="applies",
    row="pair",
    rows="pairs of sample and label",
    over="too high: labels apply less often than it says",
    under="too low: labels apply more often than it says",
)


def words_of(evaluation: Evaluation) -> Words:
    """The words for a reliability diagram of these predictions."""
    return OF_LABELS if evaluation.multilabel else OF_PREDICTIONS
