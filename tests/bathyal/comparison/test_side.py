"""A side of a comparison, which runs in a process of its own."""

import bathyal as bt
from bathyal.comparison import side
from bathyal.comparison.torch_step import TorchStep
from bathyal.engine.settings import Settings
from bathyal.options.network import NetworkSetup


class FakeTorch:
    """PyTorch, as far as it is told how to compute."""

    def __init__(self):
        self.flushes = False

    def set_flush_denormal(self, flush):
        self.flushes = flush
        return True


def test_pytorch_takes_subnormal_numbers_for_zero_as_ours_does(monkeypatch):
    torch = FakeTorch()
    monkeypatch.setattr(TorchStep, "__init__", lambda step, *given, **choices: setattr(step, "_torch", torch))
    network = bt.Sequential(bt.Flatten(), bt.Linear(3))
    setup = NetworkSetup(network, Settings(input_shape=(2, 3, 8, 8), threads=1), 3)
    side.open_side("torch", setup)
    assert torch.flushes
