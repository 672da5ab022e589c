"""Small tables of scikit-learn's, for the tests of what works with it."""

from typing import Any

import pytest

# Small data may not determine a temperature: it warns, and must work all the same.
few = pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")

Split = tuple[Any, Any, Any, Any]


def split(load: Any, seed: int = 0) -> Split:
    """Two halves: inputs to fit on, inputs to test on, and their labels."""
    from sklearn.model_selection import train_test_split

    X, y = load(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
    return X_train, X_test, y_train, y_test
