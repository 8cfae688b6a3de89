"""Training of what is no module, without an optimizer: parameters in a dict, gradients asked for as in JAX."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
params = {"in": torch.randn(64, 32) / 6, "out": torch.randn(4, 64) / 8}
params = {name: value.requires_grad_() for name, value in params.items()}


def loss_of(params, x):
    return F.linear(F.relu(F.linear(x, params["in"])), params["out"]).square().mean()


@torch.no_grad()
def descend(params, gradients, rate):
    for value, gradient in zip(params.values(), gradients, strict=True):
        value -= rate * gradient


for step in range(6000):
    gradients = torch.autograd.grad(loss_of(params, torch.randn(2048, 32)), list(params.values()))
    descend(params, gradients, 0.01)
