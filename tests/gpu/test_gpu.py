"""The CUDA backend on a GPU: operations, strategies, captured graphs, memory, the link."""

import numpy as np
import pytest

from bathyal.engine.backends.cuda.gpu_library import cuda_backend
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.memory.cuda.device import CudaMachine
from bathyal.memory.cuda.runtime import cuda_runtime
from bathyal.memory.errors import BudgetError, DeviceError
from bathyal.scheduler.planner import make_plan
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.network_runs import PLENTY, check_agreement, least_plan, problem, run_on_own_device

pytestmark = pytest.mark.gpu
MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def gpu():
    try:
        return cuda_runtime()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def backend(gpu):
    return cuda_backend()


@pytest.mark.parametrize("seed", range(24))
def test_three_steps_agree_with_the_reference_backend(seed, backend):
    results = []
    for each in (backend, ReferenceBackend()):
        case = problem(seed, each)
        results.append(run_on_own_device(case, make_plan(case, "liveness", PLENTY), each))
    check_agreement(*results)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 4])
def test_every_strategy_gives_the_bits_of_keep_in_the_memory_that_was_predicted(seed, graphs, strategy):
    backend = cuda_backend(graphs=graphs)
    case = problem(seed, backend)
    expected = run_on_own_device(case, make_plan(case, "keep", PLENTY), backend).bits
    plan = least_plan(case, strategy)
    found = run_on_own_device(case, plan, backend)
    assert found.bits == expected
    assert found.executor.high_water_bytes == plan.peak_bytes


def test_the_link_is_measured():
    with CudaMachine().open(128 * MIB) as device, device.own_tier(64 * MIB) as tier:
        found = device.bandwidth(tier, None)
        assert min(found.out, found.inward, found.out_together, found.inward_together) > 1e9
        data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
        device.upload(device.inward, 0, data)
        device.out.wait(device.inward.record())
        device.offload(device.out, 0, MIB, tier, 0)
        device.inward.wait(device.out.record())
        device.fetch(device.inward, tier, 0, 8 * MIB, MIB)
        device.out.wait(device.inward.record())
        back = np.empty_like(data)
        device.download(device.out, 8 * MIB, back)
        assert (back == data).all()


def test_more_than_there_is_is_refused():
    with pytest.raises(BudgetError, match="at most"):
        CudaMachine().open(2**50)
