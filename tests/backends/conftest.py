"""Assertions of the conformance suite explain themselves, though it is not a test file by name."""

import pytest

pytest.register_assert_rewrite("backends.cases")
