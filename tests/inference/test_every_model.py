"""What every model has to keep, by the models of this package."""

from __future__ import annotations

import pytest

from giaann_dask.testing import ModelTests

pytestmark = pytest.mark.cluster


class TestV1(ModelTests):
    profile = "v1"


class TestV2(ModelTests):
    profile = "v2"


class TestContexts(ModelTests):
    profile = "contexts"
