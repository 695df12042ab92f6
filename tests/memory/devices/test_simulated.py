import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bathyal.memory.arena import Arena
from bathyal.memory.devices.device import Accesses, Work
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.devices.shadow import RaceError
from bathyal.memory.devices.simulated import SimulatedDevice
from bathyal.memory.errors import DataError, DeviceError, PlanError
from tests.support.host_tier import HostTier

SEEDS = range(20)
NBYTES = 64


def touch(label, reads=(), writes=(), run=lambda: None):
    return Work(label, run, lambda: Accesses(tuple(reads), tuple(writes)))


def everything(device):
    for queue in (device.compute, device.out, device.inward):
        queue.synchronize()


class Program:
    """A step that offloads x, reuses its bytes for y, fetches x back elsewhere and reads it; any wait can be left out.

    The order in which the host launches independent pieces can be varied too: it must not matter.
    """

    waits = ("out after compute", "reuse after out", "fetch after out", "use after fetch")

    def __init__(self, device, without="", late_fetch=False):
        self.device = device
        self.without = without
        self.store = np.zeros(NBYTES, np.uint8)
        self.result = np.zeros(NBYTES, np.uint8)
        self.late_fetch = late_fetch

    def wait(self, name, queue, event):
        if name != self.without:
            queue.wait(event)

    def fill(self, address, byte):
        def run():
            self.device.arena.memory[address : address + NBYTES] = byte

        return touch(f"fill {address}", writes=[(address, address + NBYTES)], run=run)

    def fetch(self, offloaded):
        self.wait("fetch after out", self.device.inward, offloaded)
        self.device.upload(self.device.inward, 2 * NBYTES, self.store)
        return self.device.inward.record()

    def step(self):
        compute, out = self.device.compute, self.device.out
        compute.launch(self.fill(0, 1))
        self.wait("out after compute", out, compute.record())
        self.device.download(out, 0, self.store)
        offloaded = out.record()
        fetched = None if self.late_fetch else self.fetch(offloaded)
        self.wait("reuse after out", compute, offloaded)
        compute.launch(self.fill(0, 2))
        if fetched is None:
            fetched = self.fetch(offloaded)
        self.wait("use after fetch", compute, fetched)
        compute.launch(
            touch("use", reads=[(2 * NBYTES, 3 * NBYTES)], run=lambda: np.copyto(self.result, self.view(2 * NBYTES)))
        )

    def view(self, address):
        return self.device.arena.memory[address : address + NBYTES]


@pytest.mark.parametrize("late_fetch", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_program_is_never_reported_and_moves_its_data(seed, late_fetch):
    with SimulatedDevice(Arena(4096), seed) as device:
        program = Program(device, late_fetch=late_fetch)
        for _ in range(3):
            program.result[:] = 0
            program.step()
            everything(device)
            assert (program.result == 1).all()
            assert (program.view(0) == 2).all()


@pytest.mark.parametrize("late_fetch", [False, True])
@pytest.mark.parametrize("without", Program.waits)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_dropped_wait_is_found_by_every_seed(seed, without, late_fetch):
    # With x's early fetch, "reuse after out" is ordered by no other event; with the late one neither.
    with SimulatedDevice(Arena(4096), seed) as device:
        Program(device, without, late_fetch).step()
        with pytest.raises(RaceError) as caught:
            everything(device)
        assert caught.value.first != caught.value.second


def test_a_race_names_both_works_their_queues_and_the_bytes():
    with SimulatedDevice(Arena(4096)) as device:
        device.compute.launch(touch("conv1", writes=[(0, 100)]))
        device.out.launch(touch("offload x", reads=[(60, 200)]))
        with pytest.raises(RaceError) as caught:
            everything(device)
        assert {caught.value.first, caught.value.second} == {"conv1 (compute)", "offload x (out)"}
        assert caught.value.byte_range == (60, 100)
        assert "[60, 100)" in caught.value.where


def test_orders_differ_between_seeds_and_repeat_for_one():
    def order(seed):
        ran = []
        with SimulatedDevice(Arena(4096), seed) as device:
            for index in range(20):
                for queue in (device.compute, device.out, device.inward):
                    name = queue.name
                    queue.launch(touch(name, run=lambda name=name, index=index: ran.append((name, index))))
            everything(device)
        for name in ("compute", "out", "inward"):
            assert [index for queue, index in ran if queue == name] == list(range(20))
        return tuple(ran)

    assert order(3) == order(3)
    assert len({order(seed) for seed in SEEDS}) == len(SEEDS)


def test_nothing_runs_before_it_must():
    ran = []
    with SimulatedDevice(Arena(4096)) as device:
        device.compute.launch(touch("a", run=lambda: ran.append("a")))
        device.out.synchronize()
        assert ran == []
        device.compute.synchronize()
        assert ran == ["a"]


def test_two_reads_are_no_race_and_a_write_after_both_needs_both():
    for missing in (None, "out", "inward"):
        with SimulatedDevice(Arena(4096)) as device:
            device.out.launch(touch("r1", reads=[(0, 64)]))
            device.inward.launch(touch("r2", reads=[(0, 64)]))
            for queue in (device.out, device.inward):
                if queue.name != missing:
                    device.compute.wait(queue.record())
            device.compute.launch(touch("w", writes=[(0, 64)]))
            if missing is None:
                everything(device)
            else:
                with pytest.raises(RaceError):
                    everything(device)


def test_order_passes_through_a_third_queue():
    with SimulatedDevice(Arena(4096)) as device:
        device.compute.launch(touch("w", writes=[(0, 64)]))
        device.out.wait(device.compute.record())
        device.inward.wait(device.out.record())
        device.inward.launch(touch("r", reads=[(0, 64)]))
        everything(device)


def test_what_the_host_has_synchronized_comes_before_what_it_launches_then():
    for seed in SEEDS:
        with SimulatedDevice(Arena(4096), seed) as device:
            device.inward.launch(touch("other", writes=[(512, 600)]))  # so that not all is drained
            device.out.launch(touch("r", reads=[(0, 64)]))
            device.out.synchronize()
            device.compute.launch(touch("w", writes=[(0, 64)]))
            everything(device)


def test_work_launched_before_the_synchronize_is_not_ordered_by_it():
    for seed in SEEDS:
        with SimulatedDevice(Arena(4096), seed) as device:
            device.compute.launch(touch("w", writes=[(0, 64)]))
            device.out.launch(touch("r", reads=[(0, 64)]))
            with pytest.raises(RaceError):
                everything(device)


def test_a_fetch_before_its_offload_has_ended_is_found_in_host_memory():
    with SimulatedDevice(Arena(4096)) as device:
        store = np.zeros(64, np.uint8)
        device.download(device.out, 0, store[:32])
        device.upload(device.inward, 1024, store[16:])
        with pytest.raises(RaceError, match="host memory"):
            everything(device)


def test_arrays_that_die_do_not_pass_their_history_on():
    with SimulatedDevice(Arena(1 << 20)) as device:
        for index in range(60):
            device.upload(device.inward, 8192 * index, np.zeros(512, np.uint8))
            for _ in range(8):
                device.compute.launch(touch("elsewhere", reads=[(1 << 19, 1 << 20)]))
            device.compute.synchronize()  # runs the upload too, by chance; the host has not seen it
            # Unless the device keeps the array above, this one takes its address.
            device.download(device.out, 8192 * index + 4096, np.zeros(512, np.uint8))
        everything(device)


def test_work_in_place_does_not_race_with_itself():
    with SimulatedDevice(Arena(4096)) as device:
        device.compute.launch(touch("relu", reads=[(0, 64)], writes=[(0, 64)]))
        device.compute.launch(touch("empty", reads=[(64, 64)], writes=[(10, 10)]))
        everything(device)


def test_ranges_outside_the_arena_are_refused():
    for wrong in ((-1, 4), (4000, 4097), (10, 5)):
        with SimulatedDevice(Arena(4096)) as device:
            device.compute.launch(touch("conv1", writes=[wrong]))
            with pytest.raises(PlanError, match="conv1"):
                device.compute.synchronize()


def test_a_wait_whose_event_is_never_reached_is_a_deadlock():
    with SimulatedDevice(Arena(4096)) as device, SimulatedDevice(Arena(4096)) as other:
        other.out.launch(touch("never"))
        device.compute.wait(other.out.record())
        device.out.launch(touch("independent"))
        device.out.synchronize()
        with pytest.raises(DeviceError, match="deadlock"):
            device.compute.synchronize()


def test_errors_surface_at_their_own_queue_and_spread_through_events():
    def fail():
        raise OSError("disk full")

    for seed in SEEDS:
        ran = []
        with SimulatedDevice(Arena(4096), seed) as device:
            device.out.launch(touch("offload x", run=fail))
            device.inward.wait(device.out.record())
            device.inward.launch(touch("fetch x", run=lambda ran=ran: ran.append("stale")))
            device.compute.launch(touch("conv1", run=lambda ran=ran: ran.append("conv1")))
            device.compute.synchronize()
            for queue in (device.inward, device.out):
                with pytest.raises(DeviceError, match="offload x"):
                    queue.synchronize()
            device.out.launch(touch("again", run=lambda ran=ran: ran.append("again")))
            device.out.synchronize()
            assert ran == ["conv1", "again"]


def test_a_closed_device_takes_nothing_and_arrays_are_checked():
    device = SimulatedDevice(Arena(4096))
    with pytest.raises(DataError):
        device.upload(device.inward, 0, np.zeros((4, 4))[:, ::2])
    device.compute.launch(touch("dropped"))
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.compute.launch(touch("late"))


def test_the_history_stays_bounded_over_many_steps_without_a_full_synchronize():
    with SimulatedDevice(Arena(1 << 20)) as device:
        sizes = []
        for _ in range(4):
            for index in range(3000):
                first = index * 7919 % 16000 * 64
                device.compute.launch(touch(f"op {index}", reads=[(first, first + 64)], writes=[(first, first + 192)]))
            device.inward.launch(touch("never drained", reads=[(0, 0)]))
            device.compute.synchronize()
            device.out.launch(touch("keeps the history", reads=[(0, 0)]))
            sizes.append(device.shadow_ranges)
        assert max(sizes) <= 2 * 3000 + 4
        everything(device)
        assert device.shadow_ranges == 2


class TierProgram:
    """Two tensors take turns in one place of the arena and one of the tier; any wait can be left out.

    x is filled, offloaded, its arena bytes reused for y, fetched elsewhere and used; then y goes to the place in the
    tier where x was, and comes back.
    """

    waits = ("offload x", "reuse arena", "fetch x", "use x", "overwrite tier", "reuse target", "fetch y", "use y")
    x_or_y, target = 0, 4096

    def __init__(self, device, tier, without=""):
        self.device = device
        self.tier = tier
        self.without = without
        self.used = []

    def wait(self, name, queue, event):
        if name != self.without:
            queue.wait(event)

    def fill(self, address, byte):
        def run():
            self.device.arena.memory[address : address + 4096] = byte

        self.device.compute.launch(touch(f"fill {byte}", writes=[(address, address + 4096)], run=run))
        return self.device.compute.record()

    def use(self):
        def run():
            self.used.append(int(self.device.arena.memory[self.target : self.target + 4096].max()))

        self.device.compute.launch(touch("use", reads=[(self.target, self.target + 4096)], run=run))
        return self.device.compute.record()

    def offload(self):
        self.device.offload(self.device.out, self.x_or_y, 4096, self.tier, 8192)
        return self.device.out.record()

    def fetch(self):
        self.device.fetch(self.device.inward, self.tier, 8192, self.target, 4096)
        return self.device.inward.record()

    def step(self):
        compute, out, inward = self.device.compute, self.device.out, self.device.inward
        self.wait("offload x", out, self.fill(self.x_or_y, 1))
        offloaded = self.offload()
        self.wait("fetch x", inward, offloaded)
        fetched = self.fetch()
        self.wait("reuse arena", compute, offloaded)
        filled = self.fill(self.x_or_y, 2)
        self.wait("use x", compute, fetched)
        used = self.use()
        out.wait(filled)
        self.wait("overwrite tier", out, fetched)
        offloaded = self.offload()
        self.wait("reuse target", inward, used)
        self.wait("fetch y", inward, offloaded)
        fetched = self.fetch()
        self.wait("use y", compute, fetched)
        self.use()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_program_over_a_tier_is_never_reported(seed):
    with HostTier(3 * 4096) as tier, SimulatedDevice(Arena(8192), seed) as device:
        program = TierProgram(device, tier)
        for _ in range(3):
            program.step()
            everything(device)
        assert program.used == [1, 2] * 3


@pytest.mark.parametrize("without", TierProgram.waits)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_wait_around_a_tier_that_is_left_out_is_found_by_every_seed(seed, without):
    with HostTier(3 * 4096) as tier, SimulatedDevice(Arena(8192), seed) as device:
        TierProgram(device, tier, without).step()
        with pytest.raises(RaceError) as caught:
            everything(device)
        in_tier = without in ("fetch x", "overwrite tier", "fetch y")
        assert caught.value.where.startswith("tier 'host'" if in_tier else "arena")


def test_bytes_of_two_tiers_at_one_address_are_apart_and_names_must_tell_them_apart():
    with HostTier(4096) as near, HostTier(4096, name="far") as far, SimulatedDevice(Arena(8192)) as device:
        device.offload(device.out, 0, 4096, near, 0)
        device.fetch(device.inward, far, 0, 4096, 4096)
        everything(device)
        with HostTier(4096) as twin, pytest.raises(PlanError, match="different names"):
            device.offload(device.out, 0, 4096, twin, 0)


def test_other_work_can_declare_bytes_of_a_tier():
    with SimulatedDevice(Arena(4096)) as device:
        accesses = Accesses(tier_writes=(("disk", 0, 64),))
        device.compute.launch(Work("wipe", lambda: None, lambda: accesses))
        device.inward.launch(Work("look", lambda: None, lambda: Accesses(tier_reads=(("disk", 60, 70),))))
        with pytest.raises(RaceError, match="tier 'disk'") as caught:
            everything(device)
        assert caught.value.byte_range == (60, 64)


def test_the_history_of_a_tier_is_forgotten_once_all_is_done():
    with HostTier(1 << 20) as tier, SimulatedDevice(Arena(1 << 20)) as device:
        for _ in range(3):
            for address in range(0, 1 << 20, 8192):
                device.offload(device.out, address, 100, tier, address)
            everything(device)
            assert device.shadow_ranges == 2


@st.composite
def programs(draw):
    """Random works with few bytes and random waits: (queue, reads, writes, queues waited for)."""
    ranges = st.tuples(st.integers(0, 7), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    one = st.tuples(
        st.integers(0, 2), st.lists(ranges, max_size=2), st.lists(ranges, max_size=1), st.sets(st.integers(0, 2))
    )
    return draw(st.lists(one, min_size=2, max_size=14))


def races_by_reachability(program):
    """The oracle: conflicting pairs without a path in the graph of queue order and waits."""
    before, latest = [], [set(), set(), set()]
    conflict = False
    for index, (queue, reads, writes, waits) in enumerate(program):
        mine = set(latest[queue]).union(*(latest[other] for other in waits))
        before.append(mine)
        latest[queue] = mine | {index}
        for earlier in range(index):
            _, other_reads, other_writes, _ = program[earlier]
            pairs = [(a, b) for a in writes for b in other_writes + other_reads]
            pairs += [(a, b) for a in reads for b in other_writes]
            if earlier not in mine and any(a[0] < b[1] and b[0] < a[1] for a, b in pairs):
                conflict = True
    return conflict


@given(programs(), st.integers(0, 2**32))
def test_it_reports_exactly_the_programs_that_race(program, seed):
    with SimulatedDevice(Arena(4096), seed) as device:
        queues = (device.compute, device.out, device.inward)
        for index, (queue, reads, writes, waits) in enumerate(program):
            for other in waits - {queue}:
                queues[queue].wait(queues[other].record())
            queues[queue].launch(touch(f"work {index}", reads, writes))
        if races_by_reachability(program):
            with pytest.raises(RaceError):
                everything(device)
        else:
            everything(device)


@pytest.mark.parametrize("make", [HostDevice, SimulatedDevice])
def test_both_devices_give_the_same_result(make):
    with make(Arena(4096)) as device:
        program = Program(device)
        program.step()
        everything(device)
        assert (program.result == 1).all()


@pytest.mark.parametrize("make", [HostDevice, SimulatedDevice])
def test_both_devices_move_the_same_bytes_through_a_tier(make):
    with HostTier(3 * 4096) as tier, make(Arena(8192)) as device:
        program = TierProgram(device, tier)
        program.step()
        everything(device)
        assert program.used == [1, 2]
