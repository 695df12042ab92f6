import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.layers.graph import STATE, Role
from bathyal.layers.slabs import split_large
from bathyal.models import alexnet, resnet18, small_resnet
from bathyal.scheduler.layout import placement
from bathyal.scheduler.layout.placement import Rectangle, place
from bathyal.scheduler.plan.state_layout import lay_out_state


@st.composite
def rectangles(draw, alignments=(64,)):
    steps = draw(st.integers(1, 30))
    found = []
    for _ in range(draw(st.integers(0, 40))):
        birth = draw(st.integers(0, steps - 1))
        death, nbytes = draw(st.integers(birth, steps - 1)), 64 * draw(st.integers(0, 20))
        found.append(Rectangle(birth, death, nbytes, draw(st.sampled_from(alignments))))
    return found


def overlaps(a, b):
    return a.birth <= b.death and b.birth <= a.death


def live_peak(found):
    steps = max((r.death for r in found), default=0) + 1
    return max(sum(r.nbytes for r in found if r.birth <= s <= r.death) for s in range(steps))


def check(found, base, enough=None):
    """Whatever lives together lies apart, aligned as asked, above the base."""
    addresses, end = place(found, base, enough)
    assert len(addresses) == len(found)
    for i, a in enumerate(found):
        assert addresses[i] >= base
        assert addresses[i] + a.nbytes <= end
        assert addresses[i] % (a.alignment if a.nbytes else 64) == 0
        for j in range(i):
            b = found[j]
            if overlaps(a, b) and a.nbytes and b.nbytes:
                assert addresses[i] + a.nbytes <= addresses[j] or addresses[j] + b.nbytes <= addresses[i]
    assert end - base >= live_peak(found) if found else end == base


@given(rectangles(), st.sampled_from([0, 64, 4096]))
@settings(max_examples=200, deadline=None)
def test_no_two_rectangles_that_live_together_share_a_byte(found, base):
    check(found, base)


@given(rectangles((64, 4096)), st.sampled_from([0, 64, 4096]))
@settings(max_examples=60, deadline=None)
def test_each_rectangle_is_aligned_as_it_asks(found, base):
    check(found, base)
    check(found, base, 0)


def test_the_bytes_before_an_aligned_rectangle_are_not_lost():
    found = [Rectangle(0, 3, 64), Rectangle(0, 3, 4096, 4096), Rectangle(0, 3, 4032)]
    addresses, end = place(found, 64)
    assert addresses[1] % 4096 == 0
    assert end == 8192 + 64


@given(rectangles((64, 4096)))
@settings(max_examples=100, deadline=None)
def test_large_plans_take_the_heap_pool_alone_and_still_hold(found):
    limit = placement.FIRST_FIT_LIMIT
    placement.FIRST_FIT_LIMIT = 0
    try:
        check(found, 64)
    finally:
        placement.FIRST_FIT_LIMIT = limit


def test_nested_lives_need_no_more_than_the_live_peak():
    nested = [Rectangle(i, 40 - i, 64 * (1 + i % 3)) for i in range(20)]
    _, end = place(nested, 0)
    assert end == live_peak(nested)


@pytest.mark.parametrize("seed", [0, 1, 18, 21])
def test_what_ends_too_high_is_placed_earlier_until_the_live_peak_is_enough(seed):
    rng = random.Random(seed)
    found = []
    for _ in range(40):
        birth = rng.randrange(30)
        found.append(Rectangle(birth, min(29, birth + rng.randrange(12)), 64 * rng.randint(1, 12)))
    assert place(found, 0)[1] > live_peak(found)
    assert place(found, 0, 0)[1] == live_peak(found)
    check(found, 64, 0)


def test_same_input_same_addresses():
    found = [Rectangle(i % 7, i % 7 + i % 5, 64 * (i % 11 + 1)) for i in range(60)]
    assert place(found, 0) == place(list(found), 0)


NETWORKS = [(small_resnet(), (1, 8, 8)), (resnet18(10), (3, 32, 32)), (alexnet(10), (3, 64, 64))]
IDS = ("small_resnet", "resnet18", "alexnet")


def lowered(network, image, batch=2, momentum=0.9):
    forward = split_large(forward_graph(network, (batch, *image)), 10**6)
    return lower(training_graph(forward, SGD(momentum=momentum)), NullBackend())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("network", "image"), NETWORKS, ids=IDS)
def test_the_state_of_a_block_is_one_piece(network, image, momentum):
    graph = lowered(network, image, momentum=momentum)
    layout = lay_out_state(graph)
    state = {t.name: t for t in graph.with_role(*STATE)}
    assert set(layout.addresses) == set(state)
    in_order = sorted(state.values(), key=lambda t: layout.addresses[t.name])
    end = 0
    for tensor in in_order:
        assert layout.addresses[tensor.name] == end
        end += -(-tensor.nbytes // 64) * 64
    assert layout.nbytes == end
    blocks = {t.name: {op.block for op in graph.ops if t.id in op.inputs} for t in in_order}
    assert all(len(readers) == 1 for readers in blocks.values())
    roles = [Role.PARAMETER, Role.OPTIMIZER, Role.BUFFER]
    keys = [(*blocks[t.name], roles.index(t.role)) for t in in_order]
    assert keys == sorted(keys)
    assert len({key[0] for key in keys}) > 2


@pytest.mark.parametrize(("network", "image"), NETWORKS, ids=IDS)
def test_the_state_lies_alike_for_every_batch(network, image):
    assert lay_out_state(lowered(network, image, 2)) == lay_out_state(lowered(network, image, 7))
