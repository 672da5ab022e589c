"""Corrections by several columns of groups, which overlap: each column has its own, and so do their combinations."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import temperance
from commands import run
from temperance.calibrators import Grouped, Temperature, load_calibrator
from temperance.calibrators._fit.spread import Partition, Spread, spreads_between
from temperance.calibrators.grouped import _corrections
from temperance.calibrators.groups import combination_numbers
from temperance.errors import InputError, TemperanceWarning
from temperance.files import read_tensors
from temperance.predictions import Predictions

K = 3


def drawn(
    n: int, sizes: tuple[int, ...] = (3, 4), own: float = 0.4, together: float = 0.0, seed: int = 0, draw: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and columns of groups, which shift the log-odds of classes by themselves and together.

    Draws of one seed have the same shifts.
    """
    generator = torch.Generator().manual_seed(seed)
    of_columns = [own * torch.randn(size, K, generator=generator, dtype=torch.float64) for size in sizes]
    of_both = together * torch.randn(*sizes, K, generator=generator, dtype=torch.float64)
    generator.manual_seed(1_000 * draw + seed)
    logits = 2 * torch.randn(n, K, generator=generator, dtype=torch.float64)
    columns = torch.stack([torch.randint(size, (n,), generator=generator) for size in sizes], 1)
    shifts = sum(each[column] for each, column in zip(of_columns, columns.T, strict=True)) + of_both[*columns.T]
    labels = torch.multinomial((logits.log_softmax(1) + shifts).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels, columns


def names(columns: Tensor) -> np.ndarray:
    """The columns as text, and one that joins them."""
    return np.array([" & ".join(map(str, row)) for row in columns.tolist()])


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(-probs.gather(1, labels[:, None]).log().mean())


def partitions_of(columns: Tensor) -> list[Partition]:
    numbers = combination_numbers(columns)
    columns = torch.cat([columns, numbers[:, None]], 1)
    return [Partition(column, int(column.max()) + 1) for column in columns.T]


def test_the_number_of_a_combination_is_its_place_among_all() -> None:
    rows = torch.tensor([[2, 0, 5], [0, 1, -1], [2, 0, 5], [0, 1, 3], [-1, 9, 9]])
    assert combination_numbers(rows).tolist() == [3, 1, 3, 2, 0]


def test_columns_that_differ_gain_over_their_combinations_and_over_one_map() -> None:
    gains = []
    for seed in range(3):
        logits, labels, columns = drawn(1_500, (4, 8), seed=seed)
        new, answers, of_new = drawn(10_000, (4, 8), seed=seed, draw=1)
        apart = Grouped(base="temperature").fit(logits, labels, groups=columns)
        joined = Grouped(base="temperature").fit(logits, labels, groups=names(columns))
        plain = Temperature().fit(logits, labels).predict_proba(new)
        by_columns = nll(apart.predict_proba(new, groups=of_new), answers)
        by_combinations = nll(joined.predict_proba(new, groups=names(of_new)), answers)
        assert by_columns < by_combinations < nll(plain, answers)
        gains.append(by_combinations - by_columns)
    assert sum(gains) / len(gains) > 0.004


def test_combinations_that_differ_by_more_than_their_columns_are_corrected() -> None:
    logits, labels, columns = drawn(4_000, own=0.0, together=0.6)
    new, answers, of_new = drawn(10_000, own=0.0, together=0.6, draw=1)
    apart = Grouped(base="temperature").fit(logits, labels, groups=columns).predict_proba(new, groups=of_new)
    joined = Grouped(base="temperature").fit(logits, labels, groups=names(columns))
    assert nll(apart, answers) < nll(joined.predict_proba(new, groups=names(of_new)), answers) + 0.001
    assert nll(apart, answers) < nll(Temperature().fit(logits, labels).predict_proba(new), answers) - 0.02


@pytest.mark.parametrize("sizes", [(2, 2), (5, 8), (2,) * 6])
def test_columns_that_do_not_differ_are_seldom_found_to(sizes: tuple[int, ...]) -> None:
    found_by_chance = 0
    for seed in range(40):
        logits, labels, columns = drawn(600, sizes, own=0.0, seed=seed)
        ones = torch.ones(len(labels), dtype=torch.float64)
        spreads = spreads_between(logits.log_softmax(1), labels, ones, partitions_of(columns))
        found_by_chance += any(map(any, spreads))
    assert found_by_chance <= 8  # of 40, each with a probability of 4 to 14 %


def test_a_column_of_one_group_has_nothing_to_differ_from() -> None:
    """Rounding is not a difference, however small its standard error."""
    for seed in range(20):
        logits, labels, columns = drawn(300, (1, 2), own=0.8, seed=seed)
        ones = torch.ones(300, dtype=torch.float64)
        both = spreads_between(logits.log_softmax(1), labels, ones, partitions_of(columns))
        assert both[0] == (0.0, 0.0) and all(spread.shifts < 10 for spread in both)
        alone = spreads_between(logits.log_softmax(1), labels, ones, partitions_of(columns[:, [0, 0]]))
        assert not any(map(any, alone))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_spreads_equal_a_slow_computation(weighted: bool) -> None:
    logits, labels, columns = drawn(500, own=0.8, together=0.3)
    log_probs, partitions = logits.log_softmax(1), partitions_of(columns)
    counts = torch.arange(500).remainder(3).double() if weighted else torch.ones(500, dtype=torch.float64)
    found = spreads_between(log_probs, labels, counts, partitions)
    probs, k = log_probs.exp(), K
    # The covariance of the shifts' scores of all groups of all partitions, in blocks (k, k).
    memberships = [torch.eye(p.n_groups, dtype=torch.float64)[p.of_sample] for p in partitions]
    of_sample = [
        torch.kron(rows[:, None, :], torch.eye(k, dtype=torch.float64)[None]).transpose(1, 2)
        for rows in memberships  # (n, groups · k, k)
    ]
    covariance = probs.diag_embed() - probs[:, :, None] * probs[:, None, :]
    missing = torch.eye(k, dtype=torch.float64)[labels] - probs
    whole = (counts[:, None, None] * covariance).sum(0)
    inverse = torch.linalg.pinv(whole)
    common = (counts[:, None] * missing).sum(0)
    found_excess, shares = [], []
    for each in of_sample:
        information = torch.einsum("n,ngk,nkl->gl", counts, each, covariance)
        shares.append((information, information @ inverse))
        scores = torch.einsum("n,ngk,nk->g", counts, each, missing) - shares[-1][1] @ common
        within = torch.einsum("n,ngk,nkl,nhl->gh", counts, each, covariance, each)
        found_excess.append(float(scores.square().sum() - (within - shares[-1][1] @ information.T).trace()))
    p, excess = len(partitions), torch.tensor(found_excess, dtype=torch.float64)
    sizes = torch.zeros(p, p, dtype=torch.float64)
    for c, d in itertools.product(range(p), repeat=2):
        within = torch.einsum("n,ngk,nkl,nhl->gh", counts, of_sample[c], covariance, of_sample[d])
        sizes[c, d] = (within - shares[c][1] @ shares[d][0].T).square().sum()
    best, variances = math.inf, [0.0] * p
    for kept in itertools.product((False, True), repeat=p):  # which variances are above 0
        index = torch.tensor(kept).nonzero().flatten()
        values = torch.zeros(p, dtype=torch.float64)
        if len(index):
            values[index] = torch.linalg.solve(sizes[index][:, index], excess[index])
        value = float(values @ sizes @ values / 2 - values @ excess)
        if bool((values >= 0).all()) and value < best:
            best, variances = value, values.tolist()
    assert [each.shifts for each in found] == pytest.approx(variances, rel=1e-7, abs=1e-9)
    assert any(variances)


def test_the_corrections_equal_a_slow_minimisation() -> None:
    logits, labels, columns = drawn(400)
    log_probs, partitions = logits.log_softmax(1), partitions_of(columns)
    spreads = [Spread(0.04, 0.09), Spread(0.0, 0.2), Spread(0.01, 0.0)]
    slopes, shifts = _corrections(log_probs, labels, None, partitions, spreads)
    sizes = [partition.n_groups for partition in partitions]
    numbers = torch.stack([p.of_sample + sum(sizes[:i]) for i, p in enumerate(partitions)], 1)
    of_slopes, of_shifts = (
        torch.tensor([s[i] for s in spreads]).repeat_interleave(torch.tensor(sizes)) for i in (0, 1)
    )
    b, a = torch.zeros_like(slopes), torch.zeros_like(shifts)
    for _ in range(3_000):
        with torch.enable_grad():
            b, a = b.requires_grad_(), a.requires_grad_()
            own_b, own_a = b * (of_slopes > 0), a * (of_shifts > 0)[:, None]
            scores = (log_probs * (1 + own_b[numbers].sum(1))[:, None] + own_a[numbers].sum(1)).log_softmax(1)
            loss = -scores.gather(1, labels[:, None]).sum()
            loss = loss + (own_b.square() / (2 * of_slopes.clamp_min(1e-9))).sum()
            loss = loss + (own_a.square() / (2 * of_shifts.clamp_min(1e-9)[:, None])).sum()
            step_b, step_a = torch.autograd.grad(loss, (b, a))
        b, a = (b - 1e-3 * step_b).detach(), (a - 1e-3 * step_a).detach()
    torch.testing.assert_close(slopes, b, atol=2e-3, rtol=0)
    torch.testing.assert_close(shifts, a, atol=2e-3, rtol=0)


def test_the_order_of_columns_and_samples_and_the_names_of_groups_do_not_matter() -> None:
    logits, labels, columns = drawn(800, (3, 4, 2))
    expected = Grouped(base="temperature").fit(logits, labels, groups=columns).predict_proba(logits, groups=columns)
    turned = columns[:, [2, 0, 1]]
    renamed = np.char.add("group ", (9 - columns).numpy().astype(str))
    order = torch.randperm(800, generator=torch.Generator().manual_seed(1))
    for groups in (turned, renamed, columns.tolist()):
        given = np.asarray(groups)[order.numpy()]
        fitted = Grouped(base="temperature").fit(logits[order], labels[order], groups=given)
        found = fitted.predict_proba(logits, groups=groups)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_one_column_is_the_same_with_and_without_a_second_axis() -> None:
    logits, labels, columns = drawn(500)
    one, other = (Grouped(base="temperature").fit(logits, labels, groups=g) for g in (columns[:, 0], columns[:, :1]))
    assert torch.equal(
        one.predict_proba(logits, groups=columns[:, 0]), other.predict_proba(logits, groups=columns[:, :1])
    )
    assert one.group_names == other.group_names == tuple("012") and "combinations" not in one.state_dict()


def test_a_column_that_says_nothing_new_changes_little() -> None:
    """One of a single group, and one that is there twice."""
    logits, labels, columns = drawn(3_000)
    new, answers, of_new = drawn(10_000, draw=1)
    expected = (
        Grouped(base="temperature").fit(logits, labels, groups=columns[:, 1]).predict_proba(new, groups=of_new[:, 1])
    )
    for index in ([1, 1], [1, 1, 1]):
        found = Grouped(base="temperature").fit(logits, labels, groups=columns[:, index])
        assert abs(nll(found.predict_proba(new, groups=of_new[:, index]), answers) - nll(expected, answers)) < 0.001
    single = torch.stack([columns[:, 1], torch.zeros(3_000, dtype=torch.int64)], 1)
    found = Grouped(base="temperature").fit(logits, labels, groups=single)
    of_single = torch.stack([of_new[:, 1], torch.zeros(10_000, dtype=torch.int64)], 1)
    assert abs(nll(found.predict_proba(new, groups=of_single), answers) - nll(expected, answers)) < 0.001


def test_a_new_combination_has_the_corrections_of_its_columns() -> None:
    logits, labels, columns = drawn(2_000, own=0.5, together=0.3)
    kept = (columns != torch.tensor([1, 2])).any(1)
    fitted = Grouped(base="temperature").fit(logits[kept], labels[kept], groups=columns[kept])
    rows, sizes = logits[~kept], torch.tensor([3, 4])
    log_probs = fitted._shared_log_probs(rows)
    places = torch.stack([torch.full((len(rows),), 1), torch.full((len(rows),), int(sizes[0]) + 2)], 1)
    slopes, shifts = fitted.slopes[places].sum(1), fitted.shifts[places].sum(1)
    expected = (log_probs * (1 + slopes[:, None]) + shifts).softmax(1)
    torch.testing.assert_close(fitted.predict_proba(rows, groups=columns[~kept]), expected)
    base = Temperature().fit(logits[kept], labels[kept]).predict_proba(rows)
    assert float((expected - base).abs().max()) > 0.02


def test_a_new_group_loses_the_correction_of_its_column_alone() -> None:
    logits, labels, columns = drawn(1_000, own=0.5)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=columns)
    new = torch.stack([columns[:, 0], torch.full((1_000,), 99)], 1)
    log_probs = fitted._shared_log_probs(logits)
    of_first = columns[:, 0]
    expected = (log_probs * (1 + fitted.slopes[of_first][:, None]) + fitted.shifts[of_first]).softmax(1)
    torch.testing.assert_close(fitted.predict_proba(logits, groups=new), expected)
    base = Temperature().fit(logits, labels).predict_proba(logits)
    torch.testing.assert_close(fitted.predict_proba(logits, groups=torch.full((1_000, 2), 99)), base)


def test_whole_weights_are_repeated_samples() -> None:
    logits, labels, columns = drawn(400, own=0.6)
    weights = torch.arange(400) % 3
    rows = torch.arange(400).repeat_interleave(weights)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=columns, weights=weights)
    again = Grouped(base="temperature").fit(logits[rows], labels[rows], groups=columns[rows])
    torch.testing.assert_close(fitted.slopes, again.slopes, atol=1e-5, rtol=0)
    torch.testing.assert_close(fitted.shifts, again.shifts, atol=1e-5, rtol=0)
    assert bool(fitted.shifts.any())


def test_a_file_of_one_column_can_be_read_by_earlier_versions(tmp_path: Path) -> None:
    """Those of several columns are refused there, by their format."""
    logits, labels, columns = drawn(300)
    for groups, expected in ((columns[:, 0], "1"), (columns, "2")):
        Grouped(base="temperature").fit(logits, labels, groups=groups).save(tmp_path / "cal.safetensors")
        header = read_tensors(tmp_path / "cal.safetensors")[1]
        assert header["temperance"] == expected
        assert ("group_names" in header) == (expected == "1") == ("group_columns" not in header)


@pytest.mark.parametrize("base", ["temperature", "auto"])
def test_it_is_saved_with_its_columns(base: str, tmp_path: Path) -> None:
    logits, labels, columns = drawn(600)
    fitted = Grouped(base=base).fit(logits, labels, groups=columns)
    path = f"{tmp_path}/cal.safetensors"
    fitted.save(path)
    loaded = load_calibrator(path)
    assert loaded.group_columns == fitted.group_columns == (("0", "1", "2"), ("0", "1", "2", "3"))
    assert loaded.n_parameters == fitted.n_parameters
    other = columns.where(columns != 1, 7)  # new groups and new combinations
    for given in (columns, other):
        assert torch.equal(loaded.predict_proba(logits, groups=given), fitted.predict_proba(logits, groups=given))
    again = torch.nn.Sequential(Grouped(base=base))
    again.load_state_dict(torch.nn.Sequential(fitted).state_dict())
    places = columns + torch.tensor([0, 3])
    assert torch.equal(again[0](logits, places), fitted(logits, places))


def test_one_file_with_names_that_hold_the_sign_between_names() -> None:
    """ "a & b" with "c" is not "a" with "b & c"."""
    logits, labels, columns = drawn(800, (2, 2), own=0.6, together=0.6)
    first, second = np.array(["a & b", "a"])[columns[:, 0]], np.array(["c", "b & c"])[columns[:, 1]]
    fitted = Grouped(base="temperature").fit(logits, labels, groups=np.stack([first, second], 1))
    expected = Grouped(base="temperature").fit(logits, labels, groups=columns).predict_proba(logits, groups=columns)
    found = fitted.predict_proba(logits, groups=np.stack([first, second], 1))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert len(fitted.combinations) == 4


def test_pixels_have_the_groups_of_their_image() -> None:
    logits, labels, columns = drawn(400)
    images, of_image = logits.reshape(100, 2, 2, K).movedim(-1, 1), columns[:100]
    dense = Grouped(base="temperature").fit(images, labels.reshape(100, 2, 2), groups=of_image)
    of_pixel = of_image.repeat_interleave(4, 0)
    flat = Grouped(base="temperature").fit(logits, labels, groups=of_pixel)
    found = dense.predict_proba(images, groups=of_image).movedim(1, -1).reshape(-1, K)
    torch.testing.assert_close(found, flat.predict_proba(logits, groups=of_pixel))


def test_many_combinations_and_classes_are_corrected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.calibrators._fit.spread.MOST_VALUES", 100)
    logits, labels, columns = drawn(800)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=columns)
    joined = Grouped(base="temperature").fit(logits, labels, groups=names(columns))
    found = fitted.predict_proba(logits, groups=columns)
    torch.testing.assert_close(found, joined.predict_proba(logits, groups=names(columns)), atol=1e-5, rtol=0)


def test_what_it_says_and_how_many_numbers_it_learnt() -> None:
    logits, labels, columns = drawn(2_000, own=0.8)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=columns)
    assert "7 groups in 2 columns and 12 combinations differ by" in fitted.info["verdict"]
    logits, labels, columns = drawn(2_000, own=0.0)
    alike = Grouped(base="temperature").fit(logits, labels, groups=columns)
    assert "7 groups in 2 columns and 12 combinations do not differ by more than chance" in alike.info["verdict"]
    assert alike.n_parameters == 1 < fitted.n_parameters <= 1 + 19 * (1 + K)


def test_wrong_columns_are_refused() -> None:
    logits, labels, columns = drawn(100)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=columns)
    with pytest.raises(InputError, match=r"must be the 2 columns that the calibrator was fitted with.*; got 1 column$"):
        fitted.predict_proba(logits, groups=columns[:, 0])
    with pytest.raises(InputError, match=r"groups must have shape \(100,\), one for each sample; got \(100, 2, 1\)"):
        fitted.predict_proba(logits, groups=columns[:, :, None])
    with pytest.raises(InputError, match=r"got \(100, 0\)"):
        Grouped().fit(logits, labels, groups=columns[:, :0])
    with pytest.raises(InputError, match=r"groups must have shape \(100,\), one for each row of probs; got \(100, 0\)"):
        Predictions.of(logits.softmax(1), groups=columns[:, :0])


def people(tmp_path: Path, name: str, draw: int, sexes: str = "fmx") -> str:
    logits, labels, columns = drawn(2_000, (3, 4), own=0.7, draw=draw)
    lines = ["logits_0,logits_1,logits_2,label,sex,race"]
    for z, y, (sex, race) in zip(logits.tolist(), labels.tolist(), columns.tolist(), strict=True):
        lines.append(",".join([*map(str, z), str(y), sexes[sex], "abcd"[race]]))
    path = f"{tmp_path}/{name}.csv"
    Path(path).write_text("\n".join(lines) + "\n")
    return path


def test_the_command_line_reads_columns_and_fits_them(tmp_path: Path) -> None:
    fit, new, other = (people(tmp_path, *each) for each in (("fit", 0), ("new", 1), ("other", 2, "fmy")))
    cal, out = f"{tmp_path}/cal.safetensors", f"{tmp_path}/out.csv"
    said = run("fit", "grouped:base=temperature", fit, "--group", "sex,race", "-o", cal)
    assert said.code == 0 and "7 groups in 2 columns and 12 combinations" in said.out
    fitted = load_calibrator(cal)
    assert fitted.group_columns == (("f", "m", "x"), ("a", "b", "c", "d"))
    assert run("apply", cal, new, "--group", "sex,race", "-o", out).code == 0
    data = temperance.read_predictions(new, columns={"group": "sex,race"})
    assert data.groups is not None and " & " in data.groups[0] and data.whole.group_columns is not None
    expected = fitted.predict_proba(data.logits(), groups=data.whole.group_columns)
    torch.testing.assert_close(temperance.read_predictions(out).scores, expected)
    with pytest.warns(
        TemperanceWarning, match=r"1 group of these \(y\): 6\d\d samples get only the corrections of their"
    ):
        temperance.apply(fitted, temperance.read_predictions(other, columns={"group": "sex,race"}))
    for given, read in (("race,sex", "race, sex"), ("sex", "sex")):
        said = run("apply", cal, new, "--group", given, "-o", out)
        expected = (
            f"groups sex, race, in this order, and the predictions in {new} have {read}; give the same: --group sex,"
        )
        assert said.code == 2 and expected in " ".join(said.err.split())
    with pytest.raises(InputError, match=r"the 2 columns that the calibrator was fitted with.*; got 1 column$"):
        fitted.predict_proba(data.logits(), groups=data.groups)


def test_a_calibrator_of_joined_names_takes_the_combinations_of_columns(tmp_path: Path) -> None:
    """As earlier versions made of several columns."""
    data = temperance.read_predictions(people(tmp_path, "fit", 0), columns={"group": "sex,race"})
    fitted = Grouped(base="temperature").fit(data.logits(), data.labels, groups=data.groups)
    expected = fitted.predict_proba(data.logits(), groups=data.groups)
    torch.testing.assert_close(temperance.apply(fitted, data).scores, expected)


def test_compare_fits_columns_and_keeps_them(tmp_path: Path) -> None:
    data = temperance.read_predictions(people(tmp_path, "fit", 0), columns={"group": "sex,race"})
    found = temperance.compare(data, methods=["temperature", "grouped:base=temperature"], by_group=True)
    assert found.recommended.label == "grouped:base=temperature"
    for refit in (False, True):
        calibrator = found.calibrator(refit=refit)
        assert calibrator.group_columns == (("f", "m", "x"), ("a", "b", "c", "d"))
    one = temperance.evaluate(data, calibrator=calibrator, by_group=True, bootstrap=0)
    other = temperance.evaluate(temperance.apply(calibrator, data), by_group=True, bootstrap=0)
    assert [row.value for row in one.rows] == pytest.approx([row.value for row in other.rows])


def test_groups_of_several_columns_are_measured_by_column_too(tmp_path: Path) -> None:
    path = people(tmp_path, "fit", 0)
    combinations = {f"{s} & {r}" for s in "fmx" for r in "abcd"}
    data = temperance.read_predictions(path, columns={"group": "sex,race"})
    columns = [("sex", "f", 0), ("race", "d", 1)]
    found = temperance.evaluate(data, by_group=True, bootstrap=0)
    expected = {"", *combinations, *(f"sex={s}" for s in "fmx"), *(f"race={r}" for r in "abcd")}
    assert {row.group for row in found.rows} == expected
    for name, value, i in columns:
        mine = np.asarray(data.whole.group_columns)[:, i] == value
        alone = temperance.evaluate(data.select(mine), bootstrap=0)
        assert found.row("nll", group=f"{name}={value}").value == pytest.approx(alone.row("nll").value)
        assert found.row("nll", group=f"{name}={value}").n == int(mine.sum())
    assert any("of 19 groups" in note for note in found.notes)
    given = Predictions.of(data.scores, data.labels, from_logits=True, groups=data.whole.group_columns)
    assert "column 2=d" in {row.group for row in temperance.evaluate(given, by_group=True, bootstrap=0).rows}
    # A threshold is for one group of each sample, so those are the combinations.
    rules = temperance.abstain(data, risk=[0.3], by_group=True).rules
    assert {rule.group for rule in rules} == combinations
