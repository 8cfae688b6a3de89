"""A rollout that asks the model for one sample after another is found in a real run, at its loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Safety
from rules.python_loop_over_samples import PythonLoopOverSamples
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, state):
        return Normal(self.body(state), 1.0)

    @torch.no_grad()
    def act(self, state):
        {act}


def decide(policy, states):
    {decide}


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters())
for update in range(200):
    states, seen, taken = torch.randn(48, 10), [], []
    for tick in range(4):
        actions = torch.stack(decide(policy, states))
        seen.append(states)
        taken.append(actions)
        states = states + 0.1 * actions.sum(1, keepdim=True)
    for epoch in range(3):
        loss = -policy(torch.cat(seen)).log_prob(torch.cat(taken)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PARTS = {"act": "return self(state).sample()", "decide": "return [policy.act(each) for each in states]"}


def findings(folder: Path, **parts: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(**{**PARTS, **parts}))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(PythonLoopOverSamples().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_rollout_sample_by_sample_is_found(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path)
    assert finding.site is not None and finding.site.line == 22
    # 48 robots, 4 ticks, 3 steps: 64 a step; four steps that were looked at have one rollout between them, or two
    assert 48 <= finding.evidence["calls_per_step"] <= 96
    assert finding.gain.likely > 3
    advice = PythonLoopOverSamples().fix(finding, Sources())
    assert isinstance(advice, Advice) and "torch.stack()" in advice.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        {"decide": "return list(policy.act(states))"},  # all at once
        {  # each needs what the one before has done
            "decide": "done, last = [], states[0]\n    for each in states:\n"
            "        last = policy.act(each + last.mean())\n        done.append(last)\n    return done"
        },
        {"act": "self.last = self(state).sample()\n        return self.last"},  # it keeps a state
        {  # each round tells an object what the next one reads
            "decide": "done = []\n    for each in states:\n        done.append(policy.act(each))\n"
            "        torch.default_generator.manual_seed(len(done))\n    return done"
        },
    ],
    ids=["batched", "carried", "state", "told"],
)
def test_silent_where_one_call_could_not_answer_for_all(tmp_path: Path, parts: dict[str, str]) -> None:
    assert not findings(tmp_path, **parts)


WORLDS = """\
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)


class World:
    def __init__(self, seed):
        self.rng, self.place = np.random.default_rng(seed), np.zeros(6, np.float32)

    def step(self, action):
        self.place = 0.9 * self.place + self.rng.normal(size=6).astype(np.float32) + action
        return self.place, float(-abs(self.place).sum())


policy = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(policy.parameters())
worlds = [World(seed) for seed in range(8)]


@torch.no_grad()
def collect(world):
    place, seen, taken, won = world.place, [], [], []
    for tick in range(12):
        action = Categorical(logits=policy(torch.from_numpy(place))).sample()
        seen.append(place)
        taken.append(action.item())
        place, reward = world.step(taken[-1])
        won.append(reward)
    return np.stack(seen), taken, won


for update in range(400):
    {rollout}
    seen, taken, won = (torch.as_tensor(np.concatenate(each)) for each in zip(*rollouts))
    loss = -(Categorical(logits=policy(seen)).log_prob(taken) * (won - won.mean()).float()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("rollout", "told"),
    [
        ("rollouts = [collect(world) for world in worlds]", True),
        ("rollouts = []\n    for world in worlds:\n        rollouts.append(collect(world))", True),
        ("rollouts = [collect(worlds[0]) for _ in range(8)]", False),  # one world, which goes on
    ],
)
def test_worlds_that_are_played_one_after_the_other(rollout: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORLDS.format(rollout=rollout))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = list(PythonLoopOverSamples().check(Evidence.from_run(run)))
    assert len(found) == told
    for each in found:
        advice = PythonLoopOverSamples().fix(each, Sources())
        assert isinstance(advice, Advice) and "hand each its row" in advice.text
        assert each.evidence["calls_per_step"] == pytest.approx(96, rel=0.05)


POLE = """\
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)


class Pole:
    def __init__(self, many=1):
        self.rng, self.place = np.random.default_rng(0), np.zeros((many, 6), np.float32)

    def step(self, actions):
        if callable(actions):
            actions = actions(self.place)
        self.actions = actions
        self.place = 0.9 * self.place + self.rng.normal(size=self.place.shape) + np.reshape(actions, (-1, 1))
        self.place = self.place.astype(np.float32)
        return self.place, -np.abs(self.place).sum(1), False, {{}}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, place):
        return Categorical(logits=self.net(place))

    @torch.no_grad()
    def act(self, place):
        return self(torch.from_numpy(place)).sample().numpy()


agent, pole = Agent(), Pole({many})
optimizer = torch.optim.Adam(agent.parameters())
place = pole.place
for update in range(400):
    seen, taken, won = [], [], []
    for tick in range(24):
        {round}
        won.append(reward)
    seen, taken, won = (torch.as_tensor(np.concatenate(each)) for each in (seen, taken, won))
    loss = -(agent(seen).log_prob(taken) * (won - won.mean()).float()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


ACTS = "seen.append(place)\n        action = agent.act(place)\n        taken.append(action)\n        "
STEPS = "place, reward, done, info = pole.step(action)"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("many", "round_", "told"),
    [
        (1, ACTS + STEPS, True),
        (
            1,
            "seen.append(place)\n        place, reward, done, info = pole.step(agent.act(place))\n"
            "        taken.append(pole.actions)",
            True,
        ),
        (8, ACTS + STEPS, False),  # eight at once
        (1, ACTS + "reward = -np.abs(place).sum(1)\n        place = place * np.float32(0.9)", False),  # a recurrence
        (  # whatever takes a step there, the model is part of it
            1,
            "seen.append(place)\n        place, reward, done, info = pole.step(agent.act)\n"
            "        taken.append(pole.actions)",
            False,
        ),
        (1, ACTS + STEPS.replace("action", "np.ones(1)"), False),  # by no answer of the model's
    ],
    ids=["one", "nested", "eight", "none", "inside", "unasked"],
)
def test_a_policy_that_one_environment_asks(many: int, round_: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POLE.format(many=many, round=round_))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = list(PythonLoopOverSamples().check(Evidence.from_run(run)))
    assert len(found) == told
    for each in found:
        assert each.site is not None and each.site.function == "<module>" and each.safety == Safety.BEHAVIOUR
        assert (tmp_path / "train.py").read_text().splitlines()[each.site.line - 1] == "    for tick in range(24):"
        assert each.gain.likely > 1.5
        advice = PythonLoopOverSamples().fix(each, Sources())
        assert isinstance(advice, Advice) and "SyncVectorEnv" in advice.text
