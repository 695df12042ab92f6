"""Execution: what a graph and its plan become on a device, and the training loop around it.

- `backends` compute the operations: `reference` with numpy, `onednn`, `cuda`, and `null`, which computes nothing.
- `planning` does what comes before a plan: lowering, timing kernels and disks; and keeps plans in files.
- `checkpoints` write, read and compare what a run has learned.
- `data` holds the sources of batches, with the checks of what they give.
- `session` owns the arena and makes `programs`, which the `executor` runs; `state` is what lives from step to step,
  and `learned_state` whether it is whole.
- `trainer` trains on top of them, and `evaluation` evaluates and predicts; `settings` are the choices of a run, and
  `results` what it tells.
"""
