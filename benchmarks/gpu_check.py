"""Everything that only a GPU can show, in five minutes: facts, operations, bits, memory, overlap, throughput, depth.

Run: python benchmarks/gpu_check.py [--out FILE] [--only SECTION ...] [--math float32|tf32|bf16] [--batch N]

Needs CuPy, cuDNN and PyTorch with CUDA; a wheel of cudnn-frontend in `wheels/` beside this file is used where none is
installed, and the package itself is taken from this checkout. Each section prints one JSON line when it ends, also to
FILE; a run that finds a section's line there leaves it out, so a run that was cut short goes on. The last line sums up:
`passed`, and the figures with their targets.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
MIB = 2**20
SHARES = (1.0, 0.5, 0.25)
"""Of the activations, beside the state."""


def prepare_imports() -> None:
    """Make the package `cudnn`, and this checkout with its tests, importable."""
    sys.path.insert(0, str(HERE.parent))
    try:
        import cudnn  # noqa: F401 - whether it is there
    except ImportError:
        for wheel in sorted((HERE / "wheels").glob("nvidia_cudnn_frontend-*.whl")):
            folder = tempfile.mkdtemp()
            zipfile.ZipFile(wheel).extractall(folder)
            sys.path.insert(0, folder)


def facts(options):
    """Versions, the device, and its properties as cuDNN writes them down."""
    import cudnn
    import cupy
    import torch

    from bathyal.memory.cuda.device import CudaMachine

    properties = cudnn.create_device_properties(0).serialize()
    free, total = cupy.cuda.runtime.memGetInfo()
    return {
        "cupy": cupy.__version__,
        "cudnn": cudnn.backend_version(),
        "cudnn_frontend": cudnn.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "free_bytes": free,
        "total_bytes": total,
        "default_budget_bytes": CudaMachine().default_budget(),
        "device_properties": properties if isinstance(properties, str) else list(properties),
        "passed": True,
    }


def operations(options):
    """Three steps of random networks, which hold every kind of operation, beside the reference backend's."""
    from bathyal.engine.backends.cuda.gpu_library import cuda_backend
    from bathyal.engine.backends.reference import ReferenceBackend
    from bathyal.scheduler.planner import make_plan
    from tests.support.cuda_networks import PLENTY, check_agreement, problem, run_on_own_device

    backend, kinds, distances = cuda_backend(), set(), []
    for seed in range(options.networks):
        results = []
        for each in (backend, ReferenceBackend()):
            case = problem(seed, each)
            results.append(run_on_own_device(case, make_plan(case, "liveness", PLENTY), each))
        kinds |= {op.kind for op in case.graph.ops}
        distances.append(check_agreement(*results))
    return {"kinds": sorted(kinds), "relative_distances": distances, "passed": max(distances) < 1e-3}


def pytorch(options):
    """The same networks without dropout, which draws other numbers there, beside PyTorch on the same GPU."""
    import numpy as np

    from bathyal.comparison.side import without_dropout
    from bathyal.comparison.torch_step import TorchStep
    from bathyal.engine.backends.cuda.gpu_library import cuda_backend
    from bathyal.layers import forward_graph
    from bathyal.scheduler.planner import make_plan
    from tests.support.cuda_networks import (
        FIRST_VALUES,
        OPTIMIZER,
        PLENTY,
        SHAPE,
        STEPS,
        feeds,
        problem,
        run_on_own_device,
    )
    from tests.support.lowered_graphs import relative_distance
    from tests.support.random_networks import random_network

    backend, distances, kinds = cuda_backend(), [], set()
    for seed in range(options.networks):
        network = without_dropout(random_network(seed))
        case = problem(seed, backend, network=network)
        losses, _, weights, _ = run_on_own_device(case, make_plan(case, "liveness", PLENTY), backend)
        peer = TorchStep(
            forward_graph(network, SHAPE), "torch", OPTIMIZER, seed=FIRST_VALUES, threads=4, device=options.torch_device
        )
        theirs = [peer.train_step(feeds(step)["images"], feeds(step)["labels"]) for step in range(STEPS)]
        values = peer.values()
        both = (np.concatenate([w[n].ravel() for n in sorted(values)]) for w in (weights, values))
        distances.append(max(relative_distance(*both), relative_distance(np.array(losses), np.array(theirs))))
        kinds |= {op.kind for op in case.graph.ops}
    return {"kinds": sorted(kinds), "relative_distances": distances, "passed": max(distances) < 1e-3}


def trainer(options, model, batch, memory, **choices):
    """A trainer on the GPU with its random batch; with the least memory that works where that is more."""
    import numpy as np

    import bathyal as bt
    from bathyal.models.registry import build_model

    choices = {"backend": "cuda", "math": options.math, **choices}
    shape = (batch, 3, options.image, options.image)

    def open_trainer(nbytes):
        optimizer = bt.SGD(0.01, momentum=0.9)
        return bt.Trainer(build_model(model), shape, optimizer=optimizer, memory=nbytes, cache=options.cache, **choices)

    made = open_trainer(memory)
    try:
        _ = made.plan
    except bt.BudgetError as error:
        if not error.least_bytes:
            raise
        made.close()
        made = open_trainer(error.least_bytes)
    rng = np.random.default_rng(0)
    return made, rng.normal(size=shape).astype(np.float32), rng.integers(0, 1000, batch)


def bits(options):
    """Every strategy gives the bits of `keep`, its peak is the one predicted; a captured step gives them too."""
    digests, peaks = {}, {}
    wide, _, _ = trainer(
        options, "resnet18", options.batch // 4, None, strategy="liveness", kernels="fixed", costs="analytic"
    )
    with wide:
        state, peak = wide.planned.graph.state_bytes, wide.plan.peak_bytes
    budgets = {"keep": None, "chain": state + (peak - state) // 2, "offload": state + (peak - state) // 2}
    for strategy, memory in budgets.items():
        for graphs in (False, True):
            made, images, labels = trainer(
                options,
                "resnet18",
                16,
                memory,
                strategy=strategy,
                kernels="fixed",
                costs="analytic",
                cuda_graphs=graphs,
            )
            with made:
                losses = [made.train_step(images, labels).loss for _ in range(3)]
                digests[f"{strategy} {graphs}"] = (losses, made.state.weights_sha256())
                peaks[strategy] = (made.plan.peak_bytes, made.arena_high_water_bytes, made.plan.offloaded_bytes)
            gc.collect()
    equal = len({json.dumps(d) for d in digests.values()}) == 1
    predicted = all(peak == high for peak, high, _ in peaks.values())
    return {"digests": digests, "peaks": peaks, "passed": equal and predicted}


def seconds_of(made, images, labels, steps):
    """The median step in seconds, synchronized."""
    import statistics

    times = []
    for turn in range(steps + 2):  # the first launches, the second is captured
        result = made.train_step(images, labels)
        if turn >= 2:
            times.append(result.seconds)
    return statistics.median(times)


def overlap(options):
    """The link, and the share of the transfers' own time that is hidden at a quarter of the activations."""
    whole, images, labels = trainer(options, options.model, options.batch, None, strategy="liveness")
    with whole:
        alone = seconds_of(whole, images, labels, options.steps)
        state, peak = whole.planned.graph.state_bytes, whole.plan.peak_bytes
    gc.collect()
    made, images, labels = trainer(
        options, options.model, options.batch, state + (peak - state) // 4, strategy="offload"
    )
    with made:
        found = seconds_of(made, images, labels, options.steps)
        link, plan = made.planned.costs.link, made.plan
        moving = link.out_seconds(plan.offloaded_bytes) + link.in_seconds(plan.fetched_bytes)
    hidden = max(0.0, 1 - max(found - alone, 0.0) / moving)
    return {
        "out_bytes_per_second": link.out_bytes_per_second,
        "in_bytes_per_second": link.in_bytes_per_second,
        "contention": link.contention,
        "seconds_alone": alone,
        "seconds": found,
        "predicted_seconds": plan.predicted_seconds,
        "moved_bytes": plan.offloaded_bytes + plan.fetched_bytes,
        "moving_seconds": moving,
        "hidden": hidden,
        "target": 0.9,
        "passed": hidden >= 0.9,
    }


def torch_seconds(options, checkpointed):
    """A step of PyTorch, channels last, in the same precision; with its peak of memory."""
    import statistics

    import torch

    from bathyal.comparison.torch_step import TorchStep
    from bathyal.layers.builder import forward_graph
    from bathyal.layers.optimizer import SGD
    from bathyal.models.registry import build_model

    tf32 = options.math != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    graph = forward_graph(build_model(options.model), (options.batch, 3, options.image, options.image), "float32")
    kind = "torch-checkpoint" if checkpointed else "torch"
    torch.cuda.reset_peak_memory_stats()
    step = TorchStep(graph, kind, SGD(0.01, momentum=0.9), seed=0, threads=4, device=options.torch_device)
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(options.batch, 3, options.image, options.image, generator=rng).numpy()
    labels = torch.randint(0, 1000, (options.batch,), generator=rng).numpy()
    times = []
    for turn in range(options.steps + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step.train_step(images, labels)
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(time.perf_counter() - begin)
    return statistics.median(times), torch.cuda.max_memory_allocated()


def throughput(options):
    """Seconds of a step at several budgets beside PyTorch's, eager and with a checkpoint per block."""
    rows = []
    made, images, labels = trainer(options, options.model, options.batch, None, strategy="liveness")
    with made:
        state, peak = made.planned.graph.state_bytes, made.plan.peak_bytes
        rows.append({"memory": peak, "seconds": seconds_of(made, images, labels, options.steps)})
        rows[-1]["predicted"] = made.plan.predicted_seconds
    gc.collect()
    for share in SHARES[1:]:
        made, images, labels = trainer(options, options.model, options.batch, state + int((peak - state) * share))
        with made:
            rows.append({"memory": made.plan.peak_bytes, "seconds": seconds_of(made, images, labels, options.steps)})
            rows[-1] |= {"predicted": made.plan.predicted_seconds, "moved": made.plan.offloaded_bytes}
        gc.collect()
    peers = {name: torch_seconds(options, name == "checkpointed") for name in ("eager", "checkpointed")}
    ratio = peers["eager"][0] / rows[0]["seconds"]
    return {"ours": rows, "torch": peers, "speed_by_eager": ratio, "target": 1.0, "passed": ratio >= 1.0}


def depth(options):
    """The deepest network of the paper's family that is planned in 12 GiB, batch 16, and one real step of the first."""
    import numpy as np

    import bathyal as bt
    from bathyal.models.registry import build_model

    shape, found, step = (16, 3, 227, 227), 0, None
    rng = np.random.default_rng(0)
    for blocks in options.depths:
        made = bt.Trainer(
            build_model(f"resnet:6,32,{blocks},6"),
            shape,
            optimizer=bt.SGD(0.01, momentum=0.9),
            memory="12 GiB",
            backend="cuda",
            math=options.math,
            costs="analytic",
            strategy="stream",
            link="50 GB",
        )
        with made:
            try:
                outside = made.plan.outside_bytes
            except bt.BudgetError:
                break
            found = 3 * (6 + 32 + blocks + 6) + 2
            if step is None:
                result = made.train_step(rng.normal(size=shape).astype(np.float32), rng.integers(0, 1000, 16))
                step = {"depth": found, "seconds": result.seconds, "loss": result.loss, "outside_bytes": outside}
        gc.collect()
    return {"deepest_planned": found, "step": step, "passed": step is not None and bool(np.isfinite(step["loss"]))}


SECTIONS = {s.__name__: s for s in (facts, operations, pytorch, bits, overlap, throughput, depth)}


def main() -> int:
    asked = argparse.ArgumentParser(description="What only a GPU can show.")
    asked.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    asked.add_argument("--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    asked.add_argument("--math", default="float32", choices=("float32", "tf32", "bf16"))
    asked.add_argument("--model", default="resnet50")
    asked.add_argument("--batch", type=int, default=64)
    asked.add_argument("--image", type=int, default=224)
    asked.add_argument("--steps", type=int, default=8)
    asked.add_argument("--torch-device", default="cuda", help="PyTorch's name of what computes")
    asked.add_argument("--networks", type=int, default=24, help="random ones, for the operations")
    asked.add_argument("--depths", type=int, nargs="*", default=[400, 800, 1600], help="blocks of the third stage")
    asked.add_argument("--cache", default=tempfile.mkdtemp())
    options = asked.parse_args()
    prepare_imports()
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {line["section"]: line for line in lines}
    for name in options.only:
        if name in done:
            continue
        begin = time.perf_counter()
        try:
            found = SECTIONS[name](options)
        except Exception:
            found = {"passed": False, "error": traceback.format_exc()[-3000:]}
        done[name] = {"section": name, "took_seconds": time.perf_counter() - begin, **found}
        text = json.dumps(done[name])
        print(text, flush=True)
        with options.out.open("a") as file:
            file.write(text + "\n")
        gc.collect()
    summary = {name: done[name].get("passed", False) for name in options.only}
    figures = {
        "speed_by_eager": done.get("throughput", {}).get("speed_by_eager"),
        "hidden": done.get("overlap", {}).get("hidden"),
    }
    print(json.dumps({"passed": all(summary.values()), "sections": summary, **figures}), flush=True)
    return 0 if all(summary.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
