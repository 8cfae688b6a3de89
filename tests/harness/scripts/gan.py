"""A GAN: two optimizers, one step each per batch, or several critic steps to one of the generator."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--critic-steps", type=int, default=1)
parser.add_argument("--iterations", type=int, default=3000)
args = parser.parse_args()

latent, width, batch = 32, 256, 64
generator = nn.Sequential(nn.Linear(latent, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.Tanh())
critic = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
adversarial = nn.BCEWithLogitsLoss()
data = torch.utils.data.TensorDataset(torch.rand(640, width))
loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)

iteration = 0
while iteration < args.iterations:
    for (real,) in loader:
        optimizer_d.zero_grad()
        fake = generator(torch.randn(batch, latent))
        loss_d = adversarial(critic(real), torch.ones(batch, 1)) + adversarial(critic(fake.detach()), torch.zeros(batch, 1))
        loss_d.backward()
        optimizer_d.step()
        iteration += 1
        if iteration % args.critic_steps == 0:
            optimizer_g.zero_grad()
            loss_g = adversarial(critic(generator(torch.randn(batch, latent))), torch.ones(batch, 1))
            loss_g.backward()
            optimizer_g.step()
print(f"critic {loss_d.item():.3f} generator {loss_g.item():.3f}")
