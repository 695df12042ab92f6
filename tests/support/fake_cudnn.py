"""A stand-in for cuDNN's Python package that writes down what it is asked, and knows no more than is to be asked."""

from __future__ import annotations

import ctypes

RANKED = {"A": [("eng7_k1=0", 512), ("eng7_k1=1", 300), ("eng9", 300)], "FALLBACK": [("eng1", 700), ("eng0", 0)]}


class Names:
    """An enumeration of the package: every name is its own value."""

    def __getattr__(self, name):
        return name


class FakeTensor:
    def __init__(self, **fields):
        self.__dict__.update({"output": False, "is_pass_by_value": False} | fields)

    def __getattr__(self, name):
        assert name.startswith("set_"), name

        def set_field(value):
            setattr(self, name.removeprefix("set_"), value)
            return self

        return set_field


class FakeGraph:
    """Tensors by number, operations with their tensors, the lists of plans, and every execution."""

    def __init__(self, ranked, unsupported, **options):
        self.options, self.ranked, self.unsupported = options, ranked, unsupported
        self.inputs, self.made, self.operations, self.barred, self.built, self.runs = {}, [], [], set(), [], []
        self.plans = []

    def tensor(self, **fields):
        assert fields["uid"] not in self.inputs
        tensor = self.inputs[fields["uid"]] = FakeTensor(**fields)
        return tensor

    def _operation(self, name, outputs, **arguments):
        assert not self.plans
        made = [FakeTensor(uid=None) for _ in range(outputs)]
        self.made += made
        self.operations.append((name, arguments))
        return made[0] if outputs == 1 else made

    def __getattr__(self, name):
        outputs = {"batchnorm": 5, "batchnorm_backward": 3}.get(name, 1)
        assert name in {
            *("conv_fprop", "conv_dgrad", "conv_wgrad", "batchnorm", "batchnorm_backward"),
            *("add", "mul", "relu", "relu_backward", "cmp_gt"),
        }, f"{name} is not for this backend"
        return lambda **arguments: self._operation(name, outputs, **arguments)

    def validate(self):
        if self.unsupported:
            raise RuntimeError(self.unsupported)

    def build_operation_graph(self):
        pass

    def create_execution_plans(self, modes):
        self.plans = [plan for mode in modes for plan in self.ranked[mode]]

    def deselect_numeric_notes(self, notes):
        self.barred |= set(notes)

    def deselect_behavior_notes(self, notes):
        self.barred |= set(notes)

    def get_execution_plan_count(self):
        return len(self.plans)

    def build_plan_at_index(self, index):
        self.built.append(index)
        if self.plans[index][1] is None:
            raise RuntimeError("Deselecting execution plan")

    def get_plan_name_at_index(self, index):
        return self.plans[index][0]

    def get_workspace_size_plan_at_index(self, index):
        return self.plans[index][1]

    def execute_plan_at_index(self, pack, workspace, index, handle=None):
        assert index in self.built
        scalars = {n: ctypes.c_float.from_address(a).value for n, a in pack.items() if self.is_scalar(n)}
        self.runs.append((pack | scalars, workspace, index, handle))

    def is_scalar(self, number):
        return number in self.inputs and self.inputs[number].is_pass_by_value

    @property
    def outputs(self):
        return {t.uid: t for t in self.made if t.output}


class FakeCudnn:
    __version__ = "1.0"
    data_type, heur_mode, numerical_note, behavior_note = Names(), Names(), Names(), Names()

    def __init__(self, ranked=RANKED, unsupported=""):
        self.ranked, self.unsupported, self.graphs = ranked, unsupported, []

    def backend_version_string(self):
        return "9.0"

    def create_device_properties(self, text):
        return ("properties", text)

    def pygraph(self, **options):
        self.graphs.append(FakeGraph(self.ranked, self.unsupported, **options))
        return self.graphs[-1]
