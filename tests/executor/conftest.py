"""Tests of the executor run on one thread of one CPU: no result depends on how work is split."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
