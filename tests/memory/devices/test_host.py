import logging
import threading
import time
import weakref

import numpy as np
import pytest

from bathyal.memory.arena import Arena
from bathyal.memory.devices.device import Accesses, Work
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.errors import DataError, DeviceError, PlanError
from tests.support.host_tier import HostTier

PATIENCE_SECONDS = 20  # only how long a broken test hangs


def work(run, label="work"):
    return Work(label, run, Accesses)


@pytest.fixture
def device():
    with HostDevice(Arena(1 << 16)) as device:
        yield device


@pytest.fixture
def gate():
    """A lock that work can be held at; opened at the end, so that no failed test hangs."""
    gate = threading.Event()
    yield gate
    gate.set()


def hold(gate):
    return work(lambda: gate.wait(PATIENCE_SECONDS) or pytest.fail("the gate never opened"), "held")


def fail():
    raise OSError("disk full")


def queues(device):
    return {"out": device.out, "inward": device.inward}


def test_compute_runs_in_the_callers_thread_at_once(device):
    seen = []
    device.compute.launch(work(lambda: seen.append(threading.current_thread())))
    assert seen == [threading.current_thread()]
    device.compute.wait(device.compute.record())
    device.compute.synchronize()


def test_an_error_of_compute_surfaces_at_once(device):
    with pytest.raises(OSError, match="disk full"):
        device.compute.launch(work(fail))
    device.compute.synchronize()


@pytest.mark.parametrize("name", ["out", "inward"])
def test_a_worker_runs_everything_in_order_in_one_other_thread(device, name):
    queue, seen = queues(device)[name], []
    for index in range(1000):
        queue.launch(work(lambda index=index: seen.append((index, threading.get_ident()))))
    queue.synchronize()
    assert [index for index, _ in seen] == list(range(1000))
    assert len({thread for _, thread in seen} - {threading.get_ident()}) == 1


def test_launching_does_not_wait(device, gate):
    seen = []
    device.out.launch(hold(gate))
    device.out.launch(work(lambda: seen.append("out")))
    device.inward.launch(work(lambda: seen.append("inward")))
    device.inward.synchronize()
    assert seen == ["inward"]
    gate.set()
    device.out.synchronize()
    assert seen == ["inward", "out"]


def test_compute_waits_for_an_event_of_a_worker(device, gate):
    seen = []
    device.inward.launch(hold(gate))
    device.inward.launch(work(lambda: seen.append("fetched")))
    event = device.inward.record()
    opener = threading.Timer(0.01, gate.set)
    opener.start()
    device.compute.wait(event)
    assert seen == ["fetched"]
    opener.join()


def test_a_worker_waits_for_an_event_of_the_other_and_the_caller_does_not(device, gate):
    seen = []
    device.out.launch(hold(gate))
    device.out.launch(work(lambda: seen.append("offload")))
    device.inward.wait(device.out.record())
    device.inward.launch(work(lambda: seen.append("fetch")))
    assert seen == []
    gate.set()
    device.inward.synchronize()
    assert seen == ["offload", "fetch"]


def test_a_wait_on_compute_never_blocks_a_worker(device):
    device.out.wait(device.compute.record())
    device.out.synchronize()


def test_queues_that_wait_for_each_other_in_turn_do_not_hang(device):
    seen = []
    for index in range(500):
        first, second = (device.out, device.inward) if index % 2 else (device.inward, device.out)
        first.launch(work(lambda index=index: seen.append(index)))
        second.wait(first.record())
    device.out.synchronize()
    device.inward.synchronize()
    assert seen == list(range(500))


def test_an_error_surfaces_once_and_later_work_is_skipped_until_then(device):
    seen = []
    device.out.launch(work(fail, "offload of x"))
    device.out.launch(work(lambda: seen.append("skipped")))
    with pytest.raises(DeviceError) as caught:
        device.out.synchronize()
    assert "offload of x" in caught.value.where
    assert "'out'" in caught.value.where
    assert "disk full" in caught.value.actual
    assert isinstance(caught.value.__cause__, OSError)
    device.out.launch(work(lambda: seen.append("after")))
    device.out.synchronize()
    assert seen == ["after"]


def test_the_hint_of_an_error_of_ours_is_kept(device):
    def refuse():
        raise DataError("file", "a", "b", "Try another.")

    device.out.launch(work(refuse))
    with pytest.raises(DeviceError, match="Try another"):
        device.out.synchronize()


def test_compute_does_not_go_on_with_bytes_that_never_came(device):
    device.inward.launch(work(fail, "fetch of x"))
    event = device.inward.record()
    with pytest.raises(DeviceError, match="fetch of x"):
        device.compute.wait(event)
    with pytest.raises(DeviceError, match="fetch of x"):
        device.inward.synchronize()


def test_a_failure_goes_on_to_a_queue_that_waits_for_it(device):
    seen = []
    device.out.launch(work(fail, "offload of x"))
    device.inward.wait(device.out.record())
    device.inward.launch(work(lambda: seen.append("stale")))
    with pytest.raises(DeviceError, match="offload of x"):
        device.inward.synchronize()
    with pytest.raises(DeviceError, match="offload of x"):
        device.out.synchronize()
    assert seen == []


def test_an_event_from_before_the_failure_is_good(device):
    event = device.out.record()
    device.out.launch(work(fail))
    device.compute.wait(event)
    with pytest.raises(DeviceError):
        device.out.synchronize()


def test_a_wait_after_a_failure_still_orders_what_comes_later(device, gate):
    seen = []
    device.out.launch(hold(gate))
    device.out.launch(work(lambda: seen.append("offload")))
    device.inward.launch(work(fail))
    device.inward.wait(device.out.record())
    opener = threading.Timer(0.01, gate.set)
    opener.start()
    with pytest.raises(DeviceError):
        device.inward.synchronize()
    assert seen == ["offload"]
    opener.join()


def test_a_queue_synchronized_by_its_own_work_is_an_error_not_a_deadlock(device):
    device.out.launch(work(device.out.synchronize))
    with pytest.raises(DeviceError, match="own work"):
        device.out.synchronize()


def test_data_go_in_and_out(device):
    source = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    device.upload(device.inward, 128, source)
    event = device.inward.record()
    target = np.zeros_like(source)
    device.out.wait(event)
    device.download(device.out, 128, target)
    device.out.synchronize()
    assert np.array_equal(source, target)
    assert device.arena.high_water_bytes == 128 + source.nbytes
    scalar = np.array(2.5)
    device.upload(device.compute, 0, scalar)
    assert device.arena.memory[:8].view(np.float64)[0] == 2.5


def test_arrays_that_cannot_be_copied_are_refused_when_queued(device):
    device.upload(device.inward, 0, np.empty((0, 3)))
    with pytest.raises(DataError, match="contiguous"):
        device.upload(device.inward, 0, np.zeros((4, 4))[:, ::2])
    with pytest.raises(DataError, match="objects"):
        device.upload(device.inward, 0, np.array([object()]))
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(DataError, match="read-only"):
        device.download(device.out, 0, frozen)
    device.upload(device.inward, 0, frozen)
    with pytest.raises(PlanError):
        device.upload(device.inward, (1 << 16) - 8, np.zeros(4))


def test_closing_runs_what_is_queued_and_ends_the_threads(gate):
    before, seen = threading.active_count(), []
    device = HostDevice(Arena(4096))
    assert threading.active_count() == before + 2
    device.out.launch(hold(gate))
    device.out.launch(work(lambda: seen.append("last")))
    gate.set()
    device.close()
    device.close()
    assert seen == ["last"]
    assert threading.active_count() == before
    assert device.arena.closed
    for use in (lambda: device.out.launch(work(fail)), device.out.record, device.out.synchronize):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_closing_logs_an_error_that_nobody_saw(caplog):
    device = HostDevice(Arena(4096))
    device.out.launch(work(fail, "offload of x"))
    with caplog.at_level(logging.ERROR, "bathyal.memory.devices.host"):
        device.close()
    assert "offload of x" in caplog.text


def test_an_idle_worker_does_not_keep_the_array_that_it_copied_last(device):
    array = np.zeros(16)
    alive = weakref.ref(array)
    device.upload(device.inward, 0, array)
    del array
    # Nothing may follow in the queue, not even an event: it would take the copy's place.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert alive() is None


class BrokenTier(HostTier):
    """Fails every transfer."""

    def write(self, address, source):
        raise DeviceError("spill file in /x", "4096 bytes to be written", "EIO", "The disk is failing.")

    read = write


def test_transfers_to_a_tier_run_in_their_queues_and_bring_the_bytes_back(device):
    with HostTier(1 << 16) as tier:
        device.arena.memory[:] = 7
        device.offload(device.out, 64, 5000, tier, 4096)
        device.inward.wait(device.out.record())
        device.fetch(device.inward, tier, 4096, 1 << 15, 5000)
        device.compute.wait(device.inward.record())
        assert (device.arena.memory[1 << 15 : (1 << 15) + 5000] == 7).all()
        assert device.arena.high_water_bytes == (1 << 15) + 5000


def test_a_transfer_outside_the_arena_or_the_tier_is_refused_before_it_is_queued(device):
    with HostTier(4096) as tier:
        for address, nbytes, tier_address in ((1 << 16, 1, 0), (-1, 1, 0), (0, 4097, 0), (0, 1, 4096), (0, 1, 64)):
            with pytest.raises(PlanError):
                device.offload(device.out, address, nbytes, tier, tier_address)
            with pytest.raises(PlanError):
                device.fetch(device.inward, tier, tier_address, address, nbytes)
        device.out.synchronize()
        device.inward.synchronize()


def test_a_fault_of_a_tier_surfaces_at_its_queue_and_at_who_waits_for_it(device):
    with BrokenTier(4096, name="disk") as tier:
        device.offload(device.out, 0, 4096, tier, 0)
        with pytest.raises(DeviceError, match="offload from 0 to disk 0") as caught:
            device.compute.wait(device.out.record())
        assert "EIO" in caught.value.actual
        assert caught.value.hint == "The disk is failing."
        with pytest.raises(DeviceError, match="queue 'out'"):
            device.out.synchronize()
        device.fetch(device.inward, tier, 0, 0, 4096)
        with pytest.raises(DeviceError, match="fetch from disk 0 to 0"):
            device.inward.synchronize()
