"""Where a change of the model goes: behind what makes it ready, and not where an evaluation only switches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.rule import Example
from advisor.rulebook import load_rules

RULES = {each.id: each for each in load_rules()}

TRAINS = """
import torch
{evaluates}
model = Net()
{made}
for epoch in range(3):
    for x in loader:
        loss = model(x)  # <- forward=model(x)
        loss.backward()
    evaluate(model)
{ends}
"""
EVALUATES = """
def evaluate(model):
    model.eval()  # <- moves=model.eval()
    return sum(model(x) for x in test)
"""
OPTIMIZED = "opt = torch.optim.SGD(model.parameters())  # <- optimizer=torch.optim.SGD(model.parameters())"
TRAINER = """
import torch

class Trainer:
    def __init__(self, model):
        self.model = model

    def fit(self):
        for x in loader:
            self.model(x)  # <- forward=self.model(x)
        self.validate()

    def validate(self):
        self.model.eval()  # <- moves=self.model.eval()
"""
UNPACKED = """
import torch, clip

def main():
    model, prepare = clip.load("ViT")
    model.eval()  # <- moves=model.eval()
    for x in map(prepare, images):
        model(x)  # <- forward=model(x)
"""
RANKS = """
import torch

def rank(model, queries):
    model.eval()  # <- moves=model.eval()
    return [model(each) for each in queries]  # <- forward=model(each)
"""


def plain(text: str) -> str:
    return "\n".join(line.partition("  # <-")[0] for line in text.split("\n"))


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (TRAINS.format(evaluates=EVALUATES, made=OPTIMIZED, ends=""), plain(OPTIMIZED)),
        (TRAINS.format(evaluates=EVALUATES, made="opt = torch.optim.SGD(params)", ends=""), "model = Net()"),
        (
            TRAINS.format(evaluates="", made=OPTIMIZED, ends="model.eval()  # <- moves=model.eval()"),
            plain(OPTIMIZED),
        ),
        (
            TRAINS.format(evaluates="", made="", ends='model = model.to("cpu")  # <- moves=model.to("cpu")').replace(
                "model = Net()", "model = Net().to(device)  # <- moves=Net().to(device)"
            ),
            "model = Net().to(device)",
        ),
        (TRAINER, "        self.model = model"),
        (UNPACKED, "    model.eval()"),
        (RANKS, "    model.eval()"),
    ],
    ids=[
        *("evaluation", "evaluation alone", "evaluated at the end", "moved at the end", "trainer", "unpacked"),
        "the function whose forward it is",
    ],
)
def test_model_is_compiled_before_it_trains(before: str, line: str, tmp_path: Path) -> None:
    indent, name = line[: len(line) - len(line.lstrip())], "self.model" if "self" in line else "model"
    after = plain(before).replace(f"{line}\n", f"{line}\n{indent}{name}.compile()\n", 1)
    assert rulecheck.example(RULES["compile"], Example(before, after), tmp_path) == []


LEFT_ALONE = {
    "only a part is optimized": (
        "compile",
        """
import torch

def train(net, opt):
    loss = net(x)  # <- forward=net(x)
    loss.backward()

model = Net()
opt = torch.optim.SGD(model.head.parameters())  # <- optimizer=torch.optim.SGD(model.head.parameters())
train(model, opt)
""",
    ),
    "another function of the name is called": (
        "missing-eval",
        """
from numpy import load

class Service:
    def load(self):
        return Net()  # <- made=Net()

    def predict(self, x):
        return self.load()(x)  # <- forward=self.load()(x)

rows = load("rows.npy")
""",
    ),
    "a function within another has the name": (
        "missing-eval",
        """
from numpy import load

def maker():
    def load():
        return Net()  # <- made=Net()
    return load

rows = load("rows.npy")
y = maker()()(x)  # <- forward=maker()()(x)
""",
    ),
}


@pytest.mark.parametrize(("rule", "text"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_something_else_of_that_name_is_left_alone(rule: str, text: str, tmp_path: Path) -> None:
    assert rulecheck.left_alone(RULES[rule], Example(text, ""), tmp_path) == []
