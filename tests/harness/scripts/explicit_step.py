"""Neither optimizer nor loader nor module: says itself where a step ends, where the advisor is installed."""

import torch

try:
    from advisor import step
except ImportError:

    def step():
        pass


weights = torch.randn(256, 256, requires_grad=True)
for _ in range(5000):
    loss = (torch.randn(64, 256) @ weights).tanh().square().mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        weights -= 0.1 * gradient
    step()
