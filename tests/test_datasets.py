"""The public tables fit their public schemas."""

import sys

import numpy as np
import pytest

from discreet import datasets
from discreet.schema import Categorical

ROWS = {"fair": 6366, "anes96": 944, "randhie": 20190, "diabetes": 442}


@pytest.mark.parametrize("name", ROWS)
def test_every_table_encodes_under_its_schema(name):
    table, schema = getattr(datasets, name)()
    columns = schema.encode(table)
    assert len(table) == ROWS[name]
    assert tuple(columns) == schema.names
    for column in schema.columns:
        values = columns[column.name]
        assert values.shape == (ROWS[name],)
        if isinstance(column, Categorical):
            assert set(np.unique(values)) == set(range(column.size))  # every declared level occurs
        else:
            assert column.low <= values.min() < values.max() <= column.high


@pytest.mark.parametrize("name", ROWS)
def test_the_declared_bounds_hold_the_values(name):
    """Public bounds from codebooks: clamping changes next to nothing."""
    table, schema = getattr(datasets, name)()
    for column in schema.columns:
        if not isinstance(column, Categorical):
            outside = (table[column.name] < column.low) | (table[column.name] > column.high)
            assert outside.mean() < 0.005, column.name


def test_fair_counts_affairs_as_the_survey_did():
    """2053 of the 6366 women reported an affair (Fair 1978)."""
    table, schema = datasets.fair()
    assert schema.encode(table)["affair"].sum() == 2053


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("fair", "statsmodels.datasets", "statsmodels"), ("diabetes", "sklearn.datasets", "scikit-learn")],
)
def test_a_missing_package_is_named_with_its_remedy(name, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"'{name}' comes with {package}: pip install 'discreet\[demo\]'"):
        getattr(datasets, name)()
