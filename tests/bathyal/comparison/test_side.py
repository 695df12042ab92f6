"""A side of a comparison, in a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import torch
import bathyal as bt
from bathyal.comparison.side import open_side
from bathyal.engine.settings import Settings
from bathyal.options.network import NetworkSetup

settings = Settings(input_shape=(2, 3, 8, 8), threads=2)
open_side("torch", NetworkSetup(bt.Sequential(bt.Flatten(), bt.Linear(3)), settings, 3))
values = torch.full((1 << 20,), 1e-40)
print(torch.get_num_threads(), int(torch.count_nonzero((values * 1).view(torch.int32))))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch flushes subnormal numbers on x86-64")
def test_pytorch_takes_subnormal_numbers_for_zero_as_ours_does_in_all_its_threads():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout == "2 0\n", done.stderr
