"""The GPU as a device, on a runtime of the host's memory whose streams run as late as events allow."""

import ctypes
import sys
import types

import numpy as np
import pytest

from bathyal.memory.arena import host_memory
from bathyal.memory.cuda.arena import RESERVED_BYTES
from bathyal.memory.cuda.device import CudaMachine
from bathyal.memory.cuda.runtime import cuda_runtime
from bathyal.memory.devices.device import Accesses, Work
from bathyal.memory.errors import BudgetError, DataError, DeviceError, PlanError
from tests.support.fake_cuda import KERNEL_SECONDS, CUDARuntimeError, FakeCuda
from tests.support.host_tier import HostTier

KIB = 2**10
SEEDS = range(12)


def opened(seed=0, nbytes=64 * KIB, **choices):
    runtime = FakeCuda(seed=seed, **choices)
    return runtime, CudaMachine(runtime).open(nbytes)


def noise(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def work(runtime, device, run, name="kernel"):
    """What a backend hands over: it puts its kernel into the computing stream."""
    return Work(name, lambda: runtime.enqueue(device.arena.stream, run, name), Accesses)


def content(device, address, nbytes):
    found = np.empty(nbytes, np.uint8)
    device.download(device.out, address, found)
    return found


def inverted(device, address, nbytes):
    """A kernel: every bit of some bytes."""
    place = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(device.arena.base + address))

    def run():
        np.invert(place, out=place)

    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_uploaded_is_what_comes_down_though_the_source_has_changed(seed):
    _, device = opened(seed)
    data = noise(4 * KIB)
    given = data.copy()
    with device:
        device.upload(device.inward, 8 * KIB, given)
        given[:] = 0
        device.out.wait(device.inward.record())
        assert (content(device, 8 * KIB, data.size) == data).all()
        assert device.arena.high_water_bytes == 12 * KIB


def moved_and_back(runtime, device, tier, data, *, waits=(True, True, True)):
    """Compute on what was uploaded, move it out, overwrite it, bring it back, compute on it; which waits are there."""
    nbytes = data.size
    device.upload(device.inward, 0, data)
    device.compute.wait(device.inward.record())
    device.compute.launch(work(runtime, device, inverted(device, 0, nbytes)))
    if waits[0]:
        device.out.wait(device.compute.record())
    device.offload(device.out, 0, nbytes, tier, 4 * KIB)
    left = device.out.record()
    if waits[1]:
        device.compute.wait(left)
    device.compute.launch(work(runtime, device, inverted(device, 0, nbytes)))
    device.inward.wait(left)
    device.fetch(device.inward, tier, 4 * KIB, 16 * KIB, nbytes)
    if waits[2]:
        device.compute.wait(device.inward.record())
    device.compute.launch(work(runtime, device, inverted(device, 16 * KIB, nbytes)))
    device.out.wait(device.compute.record())
    return content(device, 16 * KIB, nbytes)


@pytest.mark.parametrize("seed", SEEDS)
def test_transfers_and_computation_are_ordered_by_events(seed):
    runtime, device = opened(seed)
    data = noise(4 * KIB)
    with device.own_tier(32 * KIB) as tier, device:
        assert (moved_and_back(runtime, device, tier, data) == data).all()
        assert (tier.traffic.out_bytes, tier.traffic.in_bytes) == (data.size, data.size)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_wait_that_is_missing_shows(missing):
    """The runtime of these tests is one that finds it."""
    wrong = 0
    for seed in range(40):
        runtime, device = opened(seed)
        data = noise(4 * KIB)
        with device.own_tier(32 * KIB) as tier, device:
            waits = [number != missing for number in range(3)]
            wrong += not (moved_and_back(runtime, device, tier, data, waits=waits) == data).all()
    assert wrong


def test_only_pinned_memory_is_moved_to_and_only_what_lies_inside():
    _, device = opened()
    with device, device.own_tier(8 * KIB) as tier, HostTier(8 * KIB) as other:
        with pytest.raises(PlanError, match="pinned memory"):
            device.offload(device.out, 0, 4 * KIB, other, 0)
        for address, tier_address, nbytes in ((0, 4 * KIB, 8 * KIB), (62 * KIB, 0, 4 * KIB), (0, 100, 100)):
            for move in (
                lambda a, t, n: device.offload(device.out, a, n, tier, t),
                lambda a, t, n: device.fetch(device.inward, tier, t, a, n),
            ):
                with pytest.raises(PlanError):
                    move(address, tier_address, nbytes)
        with pytest.raises(PlanError):
            device.upload(device.inward, 63 * KIB, noise(2 * KIB))


def test_arrays_that_cannot_be_copied_are_refused():
    _, device = opened()
    with device:
        frozen = np.zeros(8, np.uint8)
        frozen.flags.writeable = False
        for array in (np.zeros((4, 4), np.uint8)[:, :2], np.array([None])):
            with pytest.raises(DataError, match="contiguous"):
                device.upload(device.inward, 0, array)
        with pytest.raises(DataError, match="read-only"):
            device.download(device.out, 0, frozen)


def test_pinned_memory_keeps_its_bytes_when_it_grows_and_is_bounded():
    _, device = opened()
    data = noise(4 * KIB)
    with device, device.own_tier(8 * KIB) as tier:
        tier.write(4 * KIB, data)
        tier.grow(64 * KIB)
        found = np.empty_like(data)
        tier.read(4 * KIB, found)
        assert (found == data).all()
        assert tier.nbytes == 64 * KIB
    with pytest.raises(PlanError, match="open"):
        tier.read(0, found)
    _, device = opened(pinnable=4 * KIB)
    with device, pytest.raises(BudgetError, match="ulimit -l"):
        device.own_tier(8 * KIB)
    with device, pytest.raises(BudgetError, match="free memory"):
        device.own_tier(2**50)


def test_more_memory_than_the_gpu_has_is_refused_with_what_would_work():
    runtime = FakeCuda(total=RESERVED_BYTES + 100)
    machine = CudaMachine(runtime)
    assert machine.free_bytes() == 100
    assert machine.default_budget() == 95
    with pytest.raises(BudgetError, match=r"at most 100 B \(100 bytes\)"):
        machine.open(2**40)
    assert runtime.alive == 0
    with pytest.raises(BudgetError, match="at least one byte"):
        machine.open(0)
    with pytest.raises(BudgetError, match="free on the GPU"):
        CudaMachine(FakeCuda(total=RESERVED_BYTES)).default_budget()


def test_everything_is_given_back():
    runtime, device = opened()
    device.capture(lambda: None)
    held = device.out.record()
    device.compute.wait(held)
    assert runtime.alive
    device.close()
    device.close()
    assert device.arena.closed
    assert runtime.alive == 0


def test_events_are_used_again():
    runtime, device = opened()
    with device:
        for _ in range(100):
            device.compute.wait(device.out.record())
            device.out.wait(device.compute.record())
        assert runtime.calls["eventCreateWithFlags"] <= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_captured_step_does_what_the_launched_one_does(seed):
    runtime, device = opened(seed)
    data = noise(4 * KIB)

    def step():
        device.compute.launch(work(runtime, device, inverted(device, 0, data.size)))
        device.out.wait(device.compute.record())
        device.offload(device.out, 0, data.size, tier, 0)
        device.compute.wait(device.out.record())
        device.compute.launch(work(runtime, device, inverted(device, 0, data.size)))
        device.inward.wait(device.compute.record())
        device.fetch(device.inward, tier, 0, 0, data.size)
        device.compute.wait(device.inward.record())

    with device.own_tier(8 * KIB) as tier, device:
        device.upload(device.inward, 0, data)
        device.compute.wait(device.inward.record())
        replay = device.capture(step)
        for times in (1, 2, 3):
            before = dict(runtime.calls)
            replay()
            assert {k for k, n in runtime.calls.items() if n > before.get(k, 0)} <= {"graphLaunch", "enqueue"}
            device.out.wait(device.compute.record())
            expected = ~data if times % 2 else data
            assert (content(device, 0, data.size) == expected).all()
            assert (tier.traffic.out_bytes, tier.traffic.in_bytes) == (times * data.size, times * data.size)


def test_what_cannot_be_captured_is_launched_as_ever_and_graphs_can_be_off(caplog):
    runtime, device = opened()
    data = noise(4 * KIB)
    with device, device.own_tier(8 * KIB) as tier:

        def unjoined():
            """A transfer that nobody waits for would be left behind."""
            device.out.wait(device.compute.record())
            device.offload(device.out, 0, 4 * KIB, tier, 0)

        def failing():
            device.compute.launch(Work("conv1", lambda: runtime.malloc(1), Accesses))

        for run, reason in ((unjoined, "Unjoined"), (failing, "conv1"), (lambda: runtime.malloc(1), "Unsupported")):
            caplog.clear()
            assert device.capture(run) is None
            assert reason in caplog.text
        # The streams work as before.
        assert (moved_and_back(runtime, device, tier, data) == data).all()
        assert tier.traffic.out_bytes == data.size
    with CudaMachine(FakeCuda(), graphs=False).open(KIB) as device:
        assert device.capture(lambda: None) is None


def test_errors_of_the_gpu_surface_with_what_was_launched():
    runtime, device = opened()

    def fail():
        raise CUDARuntimeError("an illegal memory access")

    with device:
        with pytest.raises(DeviceError, match=r"conv1.*illegal"):
            device.compute.launch(Work("conv1", fail, Accesses))
        device.compute.launch(work(runtime, device, fail))
        with pytest.raises(DeviceError, match=r"compute.*illegal"):
            device.compute.synchronize()
        runtime._pending.clear()
        runtime._streams[device.arena.stream] = []


def test_kernels_are_timed_by_events_behind_a_fill_that_keeps_the_gpu_busy():
    runtime, device = opened()
    with device:
        device.arena.poison(7, 0, 4 * KIB)
        launch = work(runtime, device, lambda: runtime.pass_time(0.25)).run
        assert device.seconds(launch) == pytest.approx(0.25 + KERNEL_SECONDS)
        assert runtime.calls["memsetAsync"] == 2


def test_the_link_is_measured_each_way_and_beside_a_computation():
    runtime, device = opened(nbytes=256 * KIB, rate=1e7)

    def piece():
        work(runtime, device, lambda: runtime.pass_time(0.01)).run()
        return 1.0

    with device, device.own_tier(64 * KIB) as tier:
        alone = device.bandwidth(tier, None)
        assert (alone.out, alone.inward) == pytest.approx((1e7, 1e7))
        assert (alone.out_beside, alone.contention) == (alone.out, 0.0)
        found = device.bandwidth(tier, piece)
        assert found.out == pytest.approx(1e7)
        assert 0 < found.out_together <= 1e7
        # One clock for all: beside each other, each takes as long as both.
        assert 0 < found.contention < 1


def test_a_backend_of_the_host_is_told_that_the_arena_is_not_the_hosts():
    _, device = opened()
    with device, pytest.raises(DeviceError, match="an arena in the host's memory, got CudaArena"):
        host_memory(device.arena)


class TestNoGpu:
    """What a user is told."""

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(DeviceError, match=r"pip install 'bathyal\[cuda13\]'"):
            cuda_runtime()

    def test_without_a_driver_cupy_is_not_even_imported(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        monkeypatch.setattr("bathyal.memory.cuda.runtime.DRIVER", "libnowhere.so.1")
        with pytest.raises(DeviceError, match=r"driver \(libnowhere.so.1\)"):
            cuda_runtime()
        assert "cupy" not in sys.modules

    @pytest.mark.parametrize("count", [0, None])
    def test_without_a_driver_or_a_gpu(self, monkeypatch, count):
        def counted():
            if count is None:
                raise CUDARuntimeError("cudaErrorInsufficientDriver")
            return count

        runtime = types.SimpleNamespace(getDeviceCount=counted, CUDARuntimeError=CUDARuntimeError)
        cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        with pytest.raises(DeviceError, match=r"device 'cuda'.*onednn"):
            cuda_runtime()
