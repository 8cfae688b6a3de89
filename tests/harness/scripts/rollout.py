"""Updates in groups of twelve, and before each group a rollout that takes most of the time, as in PPO."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
field = torch.randn(512, 512)

for iteration in range(60):
    state = torch.randn(32, 16)
    for _ in range(10):
        with torch.no_grad():
            action = policy(state)
        field = torch.tanh(field @ field.T / 512)
        state = state + action.mean() + field[:32, :16]
    for update in range(12):
        loss = policy(state).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
