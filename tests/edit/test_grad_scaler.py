"""A GradScaler where gradients are clipped or read between backward and step, or stepped somewhere else, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.rule import Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "amp-autocast")
FLOAT16 = {"dtype": "float16"}

BRANCHES = """
import torch

def clamp(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.clamp_(-1, 1)

def main(args):
    if args.opt == "adam":
        optimizer = torch.optim.AdamW(params, lr=3e-4)
    elif args.opt == "sgd":
        optimizer = torch.optim.SGD(params, lr=0.1)  # <- optimizer
    else:
        optimizer = torch.optim.RMSprop(params)
    for x, y in loader:
        loss = criterion(decoder(encoder(x)), y)  # <- forward=encoder(x)
        optimizer.zero_grad()
        loss.backward()  # <- backward
        clamp(encoder)
        for part in (encoder, decoder):
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        optimizer.step()  # <- step
"""
SCALED = """
import torch

def clamp(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.clamp_(-1, 1)

def main(args):
    if args.opt == "adam":
        optimizer = torch.optim.AdamW(params, lr=3e-4)
    elif args.opt == "sgd":
        optimizer = torch.optim.SGD(params, lr=0.1)
    else:
        optimizer = torch.optim.RMSprop(params)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(decoder(encoder(x)), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clamp(encoder)
        for part in (encoder, decoder):
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
BEGINS = """
import torch
optimizer = torch.optim.SGD(params, lr=0.1)  # <- optimizer
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)  # <- forward=model(x)
    loss.backward()  # <- backward
"""
STEPS = """    if i % 4 == 3:
        optimizer.step()  # <- step
        optimizer.zero_grad()
"""
LEFT_ALONE = {
    "the rest is stepped behind the loop": STEPS + "if len(loader) % 4:\n    optimizer.step()\n",
    "another loss now and then": "    if i % 16 == 0:\n        penalty(model).backward()\n" + STEPS,
    "clipped at each backward": "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" + STEPS,
    "looked at apart from the step": "    log(model.head.weight.grad.norm())\n" + STEPS,
    "clipped by a function in the backward's loop": (
        "    clip(model)\n"
        + STEPS
        + "def clip(model):\n    for p in model.parameters():\n        p.grad.clamp_(-1, 1)\n"
    ),
}


def test_one_unscale_comes_before_all_that_reads_gradients_and_the_scaler_behind_all_branches(tmp_path: Path) -> None:
    assert rulecheck.example(RULE, Example(BRANCHES, SCALED, FLOAT16), tmp_path) == []


@pytest.mark.parametrize("rest", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_gradients_used_apart_from_the_step_are_left_alone(rest: str, tmp_path: Path) -> None:
    assert rulecheck.left_alone(RULE, Example(BEGINS + rest, "", FLOAT16), tmp_path) == []


def test_gradients_dropped_by_hand_are_no_reason(tmp_path: Path) -> None:
    before = BEGINS + "    optimizer.step()  # <- step\n    for p in params:\n        p.grad = None\n"
    after = """
import torch
optimizer = torch.optim.SGD(params, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    for p in params:
        p.grad = None
"""
    assert rulecheck.example(RULE, Example(before, after, FLOAT16), tmp_path) == []


@pytest.mark.parametrize("given", ["loss", "[loss, penalty]", "tensors=loss"])
def test_backward_as_a_function_is_given_the_scaled_loss(given: str, tmp_path: Path) -> None:
    text = BEGINS.replace("loss.backward()", f"torch.autograd.backward({given})") + "    optimizer.step()  # <- step\n"
    scaled = f"tensors=scaler.scale({given[8:]})" if "=" in given else f"scaler.scale({given})"
    after = f"""
import torch
optimizer = torch.optim.SGD(params, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    torch.autograd.backward({scaled})
    scaler.step(optimizer)
    scaler.update()
"""
    assert rulecheck.example(RULE, Example(text, after, FLOAT16), tmp_path) == []


def test_backward_of_what_is_unpacked_is_left_alone(tmp_path: Path) -> None:
    text = BEGINS.replace("loss.backward()", "torch.autograd.backward(*given)") + "    optimizer.step()  # <- step\n"
    assert rulecheck.left_alone(RULE, Example(text, "", FLOAT16), tmp_path) == []
