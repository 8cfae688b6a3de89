"""Scripts do with their tensors what they like; that somebody looks must not be seen, nor cost them their run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.harness.looking import is_replaced
from advisor.launch import Command, measure
from advisor.run import Run
from tests.conftest import PYTHON, QUICK

pytestmark = [pytest.mark.slow, pytest.mark.oldest]

# The windows of tests are short: what is of note comes early.
START = """
import copy, io, multiprocessing, pickle
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x):
        if x.shape[-1] != 16:
            raise ValueError("no rows of this length")
        return self.last(torch.relu(self.first(x)))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step():
    optimizer.zero_grad()
    model(torch.randn(64, 16)).square().mean().backward()
    optimizer.step()

for _ in range(3):
    step()
"""
END = """
for _ in range(5000):
    step()
"""


def run(tmp_path: Path, text: str) -> Run:
    """The run of a script, which has to come to its end."""
    script = tmp_path / "train.py"
    script.write_text(text)
    result = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    # One that fails is run again with windows that end before: its steps are few.
    assert result.record.failure is None and result.record.steps > 20, result.record.notes
    return result


def test_kinds_of_tensors_and_transforms(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        START
        + """
from torch.func import functional_call, jacrev, vmap

class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(4))
    def forward(self, x):
        return self.layers(x)

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x):
        return x * self.scale if x.is_nested else torch.sparse.sum(x, 0)

lazy, total = Lazy(), Sum()
for each in (lazy, total):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # a sign to look for models
    each.eval()
lazy(torch.randn(8, 16))
total(torch.nested.nested_tensor([torch.randn(3, 5), torch.randn(2, 5)]))
total(torch.eye(5).to_sparse())
parameters = dict(model.named_parameters())
rows = torch.randn(6, 16)
assert vmap(model)(rows).shape == (6, 4)
assert jacrev(lambda p: functional_call(model, p, (rows,)))(parameters)["last.bias"].shape == (6, 4, 4)
"""
        + END,
    ).record
    assert record.complete and {"Net", "Lazy"} <= {each.cls for each in record.models}
    (lazy,) = [each for each in record.models if each.cls == "Lazy"]
    assert lazy.parameters in (0, 16 * 32 + 32 + 32 * 4 + 4)
    assert not record.notes or all("could not be looked at" not in note for note in record.notes)


@pytest.mark.sessions
def test_tracers_and_what_they_take_down(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        START
        + """
from torch.fx.experimental.proxy_tensor import make_fx

def tidy(text):
    return [node.name for node in text.graph.nodes]

def scale(factor):
    def inner(x):
        return x * 2
    @torch.jit.script
    def outer(x):
        return inner(x)
    return outer

assert torch.equal(scale(2)(torch.ones(3)), torch.full((3,), 2.0))
traced = torch.jit.trace(func=model, example_inputs=torch.randn(2, 16))
assert traced(torch.randn(2, 16)).shape == (2, 4)
step()
graph = make_fx(model)(torch.randn(2, 16))
plain = make_fx(lambda x: model.last(torch.relu(model.first(x))))(torch.randn(2, 16))
assert len(tidy(graph)) == len(tidy(plain)), tidy(graph)
"""
        + END,
    ).record
    assert record.complete


def test_a_forward_that_raises_has_ended(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        START
        + """
def step():
    optimizer.zero_grad()
    try:
        model(torch.randn(64, 15))
    except ValueError:
        model(torch.randn(64, 16)).square().mean().backward()
    optimizer.step()
"""
        + END,
    ).record
    assert record.complete
    (model,) = record.models
    assert model.output == "tensor" and model.calls > 10


@pytest.mark.sessions
def test_processes_of_a_pool_are_left_alone(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
import multiprocessing, os
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)

def score(rows):
    with torch.inference_mode():
        for _ in range(20_000):
            out = model(rows)
    return os.getpid(), float(out.sum())

for number in range(200_000):
    with torch.inference_mode():
        model(torch.randn(8, 16))
    if number == 20_000:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            rows = [torch.randn(4, 16) for _ in range(4)]
            assert len(pool.map_async(score, rows, chunksize=1).get(timeout=60)) == 4
""",
    ).record
    assert record.complete and record.step_kind == "forward"


def test_a_fork_while_a_thread_watches_goes_on(tmp_path: Path) -> None:
    # The thread that puts hooks on has its lock ten times a second; of the two the copy of the process has the lock.
    run(
        tmp_path,
        START
        + """
import gc, threading

watching = [each for each in gc.get_objects() if type(each).__name__ in ("Models", "Optimizers")]
assert len(watching) == 2, watching
held, forked = threading.Event(), threading.Event()

def watch():
    with watching[0]._lock, watching[1]._lock:
        held.set()
        forked.wait()

threading.Thread(target=watch, daemon=True).start()
held.wait()
with multiprocessing.get_context("fork").Pool(1) as pool:
    forked.set()
    assert pool.apply_async(len, ("abc",)).get(timeout=60) == 3
"""
        + END,
    )


@pytest.mark.sessions
def test_models_from_files_and_copies_are_models(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
import copy, pickle, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
    def forward(self, x):
        return self.layer(x)

model = pickle.loads(pickle.dumps(Net()))
twin = copy.deepcopy(model)
with torch.inference_mode():
    for _ in range(400000):
        twin(torch.randn(8, 16))
""",
    ).record
    assert record.complete and record.step_kind == "forward"
    (called,) = [each for each in record.models if each.calls]
    assert called.cls == "Net" and called.made is not None


def test_hooks_and_patches_of_the_script_stay_its_own(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
import copy, pickle, torch
from torch import nn

seen = []
other, model = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 4))
own = model.register_forward_hook(lambda module, given, out: seen.append(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
original = torch.Tensor.tolist
calls = []

def tolist(tensor):
    calls.append(1)
    return original(tensor)

for number in range(5000):
    optimizer.zero_grad()
    model(other(torch.randn(8, 16))).square().mean().backward()
    optimizer.step()
    if number == 3:
        copied = copy.deepcopy(model)
        assert "advisor" not in "".join(map(str, copied._forward_hooks.values())), copied._forward_hooks
        own.remove()
        before = len(seen)
        later = model.register_forward_hook(lambda module, given, out: seen.append(1))
        later.remove()
        model(torch.randn(8, 16))
        assert len(seen) == before, "a hook that was taken off is called"
        twin = copy.deepcopy(other)
        assert not twin._forward_hooks and not twin._forward_pre_hooks, twin._forward_hooks
    if number == 12:
        original, torch.Tensor.tolist = torch.Tensor.tolist, tolist
    if number > 12:
        count = len(calls)
        torch.ones(2).tolist()
        assert len(calls) == count + 1, "what the script has replaced is not called"
""",
    ).record
    assert record.complete


@pytest.mark.sessions
def test_what_is_made_anew_goes_on_as_the_same(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
import copy, gc, weakref
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
    def forward(self, x):
        return self.layer(x)

data = TensorDataset(torch.randn(64, 16))
def main(base):
    seen = []
    for task in range(2000):
        model = copy.deepcopy(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(data, batch_size=16)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        seen = [*seen[-5:], *(weakref.ref(each) for each in (model, loader))]
        assert sum(each() is not None for each in seen) <= 4, "what the script has dropped is kept"

main(Net())
""",
    ).record
    assert record.complete and not any("began anew" in note for note in record.notes), record.notes
    (optimizer,) = record.optimizers
    assert optimizer.boundary and optimizer.steps > 20 and optimizer.parameters == 2
    (loader,) = record.loaders
    assert loader.trains and loader.remade > 5 and loader.epochs > loader.remade
    (model,) = [each for each in record.models if each.calls]
    assert model.calls > 20


@pytest.mark.sessions
def test_a_model_that_is_loaded_for_each_batch_is_seen_each_time(tmp_path: Path) -> None:
    """Between the end of its construction and its call there is no time for the thread that watches."""
    record = run(
        tmp_path,
        """
import torch
from torch import nn

def net():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(40)))

weights = net().state_dict()
with torch.no_grad():
    for number in range(4000):
        model = net()
        model.load_state_dict(weights)
        model.eval()(torch.randn(8, 256))
""",
    ).record
    assert record.complete and record.step_kind == "forward" and record.steps > 20
    (model,) = [each for each in record.models if each.calls]
    assert model.calls > 20


@pytest.mark.sessions
@pytest.mark.parametrize(
    "event",
    [
        "if number % 3000 == 2000:\n            torch.jit.trace(model, torch.randn(8, 16))",
        "if number % 40000 == 20000:\n            model = copy.deepcopy(model)",
        """if number % 3000 == 2000:
            try:
                policy.act(torch.randn(8, 15))
            except RuntimeError:
                pass
        policy.act(torch.randn(8, 16))""",
        "nn.Softmax(dim=1)(torch.ones(1, 4))",
    ],
    ids=["traced", "made anew", "raising", "modules all the time"],
)
def test_forwards_stay_the_steps(tmp_path: Path, event: str) -> None:
    record = run(
        tmp_path,
        f"""
import copy, time
import torch
from torch import nn

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
    def act(self, x):
        return self.layer(x)

policy, model = Policy(), nn.Sequential(nn.Linear(16, 4))
policy = policy if "policy" in {event!r} else None
with torch.inference_mode():
    for number in range(400_000):
        model(torch.randn(8, 16))
        {event}
""",
    ).record
    assert record.complete and record.step_kind == "forward" and record.timing.step_s


@pytest.mark.parametrize(("package", "replaced"), [("torch", False), ("torchvision", True)])
def test_methods_of_tensors_that_others_have_replaced(
    package: str, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    path = Path(torch.__file__).parents[1] / package / "part.py"
    exec(compile("def relu(tensor): pass", str(path), "exec"), made)
    monkeypatch.setattr(torch.Tensor, "relu", made["relu"])
    assert is_replaced(torch) is replaced


def test_a_kind_of_tensor_of_the_script_s_is_told_of_the_script_s_own_calls(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import torch
from torch import nn

told = []

class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        told.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 64).as_subclass(Told)
for _ in range(2000):
    told.clear()
    loss = model(x.to("cpu")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item(), repr(loss)
    if told != ["to", "linear", "square", "mean", "backward", "item", "__repr__"]:
        raise SystemExit(f"told of {told}")
""",
    )
