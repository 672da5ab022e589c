"""The edge: what is accepted, and the sentence that refuses what is not."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from temperance.arrays import as_labels, as_logits, as_probs, as_scores, flatten, log_probs, unflatten
from temperance.calibrators import Temperature
from temperance.errors import InputError
from temperance.metrics import accuracy, ece
from temperance.metrics.stream import Stream

GOOD = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
LABELS = np.array([0, 1])


@pytest.mark.parametrize(
    ("probs", "labels", "sentence"),
    [
        (np.array([[2.0, -1.0, 0.5], [0.1, 3.0, 1.0]]), LABELS, r"row 0 contains -1.*from_logits=True"),
        (np.array([[0.9, 0.9, 0.9], [0.1, 0.8, 0.1]]), LABELS, r"row 0 sums to 2.7.*from_logits=True"),
        ([[90.0, 10.0], [20.0, 80.0]], [0, 1], "row 0 sums to 100. If these are percentages, divide them by 100"),
        ([[33.0, 33.0, 33.0, 3.0], [98.0, 0.0, 0.0, 0.0]], [0, 1], "row 0 sums to 102. If these are percentages"),
        (
            np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.3]]),
            LABELS,
            r"row 1 sums to 0.9.*rounded, divide each row by its sum.*sigmoid",
        ),
        (np.array([[0.7, 0.2, 0.1], [0.9, 1.1, 0.0]]), LABELS, r"row 1 sums to 2.*pass from_logits=True$"),
        (np.array([[0.7, 0.4, -0.1], [0.1, 0.8, 0.1]]), LABELS, r"row 0 contains -0.1"),
        (np.array([[0.7, np.nan, 0.1], [0.1, 0.8, 0.1]]), LABELS, r"row 0, class 1 is nan"),
        (np.array([[0.7, 0.2, 0.1], [0.1, np.inf, 0.1]]), LABELS, r"row 1, class 1 is inf"),
        (GOOD, np.array([0, 3]), r"labels must lie in 0 … 2.*row 1 has 3"),
        (GOOD, np.array([-1, 0]), r"row 0 has -1$"),
        (GOOD, np.array([1, 3]), r"row 1 has 3\. They seem to count from 1: subtract 1$"),
        (np.eye(3), np.array([0, 3, 3]), r"row 1 has 3$"),
        (np.eye(3), np.array([2, 3, 3]), r"row 1 has 3$"),
        (GOOD, np.array([0.0, 0.5]), r"class numbers, which are integers; row 1 has 0.5$"),
        (GOOD, np.array([np.nan, 0.0]), r"row 0 has nan"),
        (GOOD, np.array([0.0, np.inf]), r"row 1 has inf"),
        (GOOD, np.array([0.0, 3.0]), r"labels must lie in 0 … 2.*row 1 has 3$"),
        (GOOD, np.array([1, 2**63 + 5], dtype=np.uint64), r"below 2\^63; row 1 has 9223372036854775813$"),
        (GOOD, np.array([0, 1j]), r"labels must be an array of numbers; got dtype complex128"),
        (GOOD, torch.tensor([0, 1j]), r"class numbers; got torch.complex64"),
        (GOOD, np.array([[1, 0, 0], [1, 1, 0]]), r"row 1 has 2 ones.*multilabel=True"),
        (GOOD, np.array([[1, 0, 0], [0, 0, 0]]), r"row 1 has 0 ones"),
        (
            GOOD,
            np.array([[1, 0, 0], [0.2, 0.7, 0.1]]),
            r"row 1 has shares of several \(0.2, 0.7, 0.1, …\).*argmax\(1\)",
        ),
        (GOOD, np.array([[1, 0, 0], [0, 2, 0]]), r"row 1 has shares of several"),
        (GOOD, np.array([0, 1, 2]), r"labels must have shape \(2,\).*got \(3,\)"),
        (GOOD, np.array(["cat", "dog"]), r"labels must be an array of numbers.*pass class_names too"),
        (np.array([0.7, 0.3]), LABELS, r"stack both columns: numpy.stack\(\[1 - p, p\], axis=1\)"),
        (LABELS, GOOD, r"got 2 whole numbers, as labels are: give predictions first, then labels"),
        (np.array([[0.7], [0.3]]), LABELS, r"both columns: numpy.concatenate\(\[1 - p, p\], axis=1\)"),
        (np.array([[0.7], [0.3]]), LABELS[:, None], r"both columns: numpy.concatenate\(\[1 - p, p\], axis=1\)"),
        (np.array([[0.7], [0.3]]), np.array([0, 0]), r"got shape \(2, 1\).*\[1 - p, p\]"),
        (np.zeros((0, 3)), np.zeros(0, int), r"empty"),
        (np.array(0.5), LABELS, r"shape"),
        ([[0.5, 0.5], [1.0]], LABELS, r"rectangular"),
        (np.array([[{}, {}]]), LABELS, r"array of numbers; got dtype object"),
        (np.ma.masked_less(GOOD, 0.15), LABELS, r"probs has masked values"),
        (GOOD, np.ma.array(LABELS, mask=[True, False]), r"labels has masked values"),
        (torch.tensor(GOOD).to_sparse(), LABELS, r"dense tensor with values; got torch.sparse_coo"),
        (torch.empty(2, 3, device="meta"), LABELS, r"dense tensor with values.*on meta"),
        ([torch.tensor([0.5, 0.5], requires_grad=True)] * 2, LABELS, r"torch.stack"),
    ],
)
def test_bad_predictions_are_refused_with_a_sentence(probs: object, labels: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ece(probs, labels)  # type: ignore[arg-type]


def test_the_logits_of_one_class_become_two_columns() -> None:
    z = np.array([1.5, -0.5])
    with pytest.raises(InputError, match=r"numpy.stack\(\[0 \* z, z\], axis=1\)"):
        ece(z, LABELS, from_logits=True)
    with pytest.raises(InputError, match=r"numpy.concatenate\(\[0 \* z, z\], axis=1\)"):
        ece(z[:, None], LABELS, from_logits=True)
    # What the sentences say is right: both give sigmoid(z).
    p = 1 / (1 + np.exp(-z))
    expected = ece(np.stack([1 - p, p], axis=1), LABELS)
    assert ece(np.stack([0 * z, z], axis=1), LABELS, from_logits=True) == pytest.approx(expected)
    column = z[:, None]
    assert ece(np.concatenate([0 * column, column], axis=1), LABELS, from_logits=True) == pytest.approx(expected)


def test_ignored_labels_do_not_hide_that_the_others_count_from_one() -> None:
    with pytest.raises(InputError, match="They seem to count from 1"):
        ece(np.eye(3), np.array([1, 255, 3]), ignore_index=255)


def test_logits_that_look_like_probabilities_are_not_guessed() -> None:
    logits = np.array([[0.1, 0.9], [0.8, 0.3]])
    with pytest.raises(InputError, match="from_logits=True"):
        ece(logits, [1, 0])
    assert ece(logits, [1, 0], from_logits=True) == pytest.approx(1 - 0.5 * (0.6899744811 + 0.6224593312))


def test_infinite_logits_are_refused_by_place() -> None:
    with pytest.raises(InputError, match=r"row 1, class 0 is -inf; give the log of a zero"):
        ece(np.array([[0.0, 1.0], [-np.inf, 0.0]]), LABELS, from_logits=True)


def test_rows_are_counted_over_the_whole_input() -> None:
    probs = np.full((300_000, 10), 0.1)
    probs[250_000, 3] = 0.9
    with pytest.raises(InputError, match=r"row 250000 sums to 1\.8"):
        ece(probs, np.zeros(300_000, int))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_types(dtype: torch.dtype) -> None:
    probs = torch.tensor(GOOD, dtype=dtype)
    assert ece(probs, LABELS) == pytest.approx(0.25, abs=2e-3)
    assert as_probs(probs).dtype == dtype


def test_kinds_of_arrays() -> None:
    expected = ece(GOOD, LABELS)
    assert ece(GOOD.tolist(), LABELS.tolist()) == expected
    assert ece(GOOD.astype(">f8"), LABELS.astype(">i4")) == expected
    assert ece(GOOD[::-1], LABELS[::-1]) == expected
    assert ece(np.asfortranarray(GOOD), LABELS[:, None]) == expected
    assert ece(torch.tensor(GOOD, requires_grad=True), LABELS) == expected
    assert ece(GOOD.astype(np.longdouble), LABELS) == expected


@pytest.mark.parametrize("dtype", [float, np.float16, np.float32, bool, np.int8, np.uint64, object])
def test_labels_of_any_type_that_are_whole_numbers(dtype: type) -> None:
    assert ece(GOOD, LABELS.astype(dtype)) == ece(GOOD, LABELS)
    assert ece(GOOD, torch.tensor(LABELS).to(torch.bfloat16)) == ece(GOOD, LABELS)


@pytest.mark.parametrize("dtype", [int, float, bool, np.uint8])
def test_one_hot_labels_are_class_numbers(dtype: type) -> None:
    one_hot = np.eye(3, dtype=dtype)[LABELS]
    assert ece(GOOD, one_hot) == ece(GOOD, LABELS)
    dense = np.moveaxis(np.broadcast_to(GOOD, (2, 2, 3)), -1, 1)
    assert accuracy(dense, np.moveaxis(np.broadcast_to(one_hot, (2, 2, 3)), -1, 1)) == 1


def test_an_error_knows_its_row_wherever_the_count_begins() -> None:
    wrong: list[Any] = [[0, 9], [0.0, 0.5], [[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [0.5, 0.5, 0]]]
    for labels in wrong:
        with pytest.raises(InputError, match="row 1001 has") as error:
            as_labels(labels, torch.tensor(GOOD), first_row=1000)
        assert error.value.row == 1001


def test_errors_survive_pickling() -> None:
    with pytest.raises(InputError) as error:
        as_labels([0, 9], torch.tensor(GOOD))
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.row, again.flags) == (str(error.value), 1, {})


def test_zeros_do_not_outweigh_everything_else() -> None:
    assert log_probs(torch.tensor([[1.0, 0.0]]))[0, 1].exp().item() == pytest.approx(1e-12)
    # What is smaller than that and not zero is kept as it is, and zero is not above it.
    found = log_probs(torch.tensor([[1.0, 1e-200, 0.0]], dtype=torch.float64))
    assert found[0, 1].exp().item() == pytest.approx(1e-200) and found[0, 2] == found[0, 1]


def test_columns_of_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(GOOD, columns=["a", "b", "c"])
    for labels in (
        pandas.Series(LABELS),
        pandas.Series(LABELS, dtype=object),
        pandas.Series(LABELS, dtype="Int64"),
        pandas.Series(LABELS, index=[7, 3]),
        pandas.DataFrame({"label": LABELS}),
    ):
        assert ece(frame, labels) == ece(GOOD, LABELS)
    assert ece(frame.astype(object), LABELS) == ece(GOOD, LABELS)
    with pytest.raises(InputError, match="labels must be"):
        ece(frame, pandas.Series([0, None], dtype="Int64"))


def test_integer_probabilities_are_numbers_too() -> None:
    assert accuracy(np.eye(3, dtype=int), np.arange(3)) == 1


def test_read_only_arrays_give_no_warning() -> None:
    frozen = GOOD.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ece(frozen, LABELS)


def test_inputs_are_not_changed() -> None:
    probs, labels = torch.tensor(GOOD), torch.tensor(LABELS)
    before = probs.clone(), labels.clone()
    ece(probs, labels)
    assert torch.equal(probs, before[0]) and torch.equal(labels, before[1])


def test_dense_round_trip() -> None:
    dense = torch.randn(2, 3, 4, 5)
    assert torch.equal(unflatten(flatten(dense), dense.shape), dense)
    flat = torch.randn(7, 3)
    assert flatten(flat) is flat and unflatten(flat, flat.shape) is flat


def test_everything_ignored_is_refused() -> None:
    with pytest.raises(InputError, match="every label is ignore_index=255"):
        ece(np.full((1, 2, 2, 2), 0.5), np.full((1, 2, 2), 255), ignore_index=255)


def test_dense_labels_out_of_range_hint_at_ignore_index() -> None:
    with pytest.raises(InputError, match=r"position \(0, 0, 0\) has 255. If 255 means no label, pass ignore_index=255"):
        ece(np.full((1, 2, 2, 2), 0.5), np.full((1, 2, 2), 255))


@pytest.mark.parametrize("ignored", ["x", 1.5, True])
def test_the_label_to_ignore_is_a_whole_number(ignored: Any) -> None:
    for use in (ece, Temperature().fit, Stream(ece).update):
        with pytest.raises(InputError, match=f"ignore_index must be a whole number; got {ignored!r}"):
            use([[0.9, 0.1], [0.2, 0.8]] * 20, [0, 1] * 20, ignore_index=ignored)
    assert ece([[0.9, 0.1], [0.2, 0.8]], [0, 255], ignore_index=np.int64(255)) == pytest.approx(0.1)  # type: ignore[arg-type]


def test_checked_edges_return_tensors() -> None:
    scores = as_scores(GOOD, "probs")
    assert as_labels(LABELS, scores).dtype == torch.int64
    assert as_logits([[1, -1]]).dtype == torch.float64
