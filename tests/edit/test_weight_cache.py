"""Where autocast's copies of the weights would outlive what they were made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Advice, Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "amp-autocast")

STALE = {
    "self-conditioning in the loop": """
for x, t in loader:
    with torch.no_grad():
        guess = model(x, t)  # <- forward=model(x, t)
    out = model(x, t, guess.detach())  # <- forward=model(x, t, guess.detach())
    loss = F.mse_loss(out, x)
    loss.backward()  # <- backward
""",
    "a decorated helper": """
@torch.no_grad()
def warm_up(net, x):
    return net(x)

for x, y in loader:
    out = model(x, warm_up(model, x))  # <- forward=model(x, warm_up(model, x))
    loss = criterion(out, y)
    loss.backward()  # <- backward
""",
    "recycling inside of the model": """
class Folder(nn.Module):
    def forward(self, x):
        for i in range(3):
            with torch.set_grad_enabled(i == 2):
                x = self.trunk(x)
        return x

for x, y in loader:
    out = model(x)  # <- forward=model(x)
    loss = criterion(out, y)
    loss.backward()  # <- backward
""",
    "self-conditioning inside of the model": """
class Diffusion(nn.Module):
    def forward(self, x):
        guess = self.guess(x)
        return self.loss(self.net(x, guess))

    @torch.inference_mode()
    def guess(self, x):
        return self.net(x)

for x in loader:
    (model(x)).backward()  # <- forward, backward
""",
    "a method of the model": """
class Agent(nn.Module):
    @torch.no_grad()
    def act(self, x):
        return self.net(x).argmax(1)

for x in loader:
    action = agent.act(x)
    out = agent(x)  # <- forward=agent(x)
    loss = F.cross_entropy(out, agent.act(x))
    loss.backward()  # <- backward
""",
    "a critic that is updated in a helper": """
def critic_step(real, fake):
    loss = D(fake).mean() - D(real).mean()
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
    return loss

for real in loader:
    fake = G(z)  # <- forward=G(z)
    for _ in range(n_critic):
        d_loss = critic_step(real, fake.detach())
    g_loss = -D(fake).mean()  # <- forward=D(fake)
    g_loss.backward()  # <- backward
""",
    "a critic that is updated in methods": """
class Trainer:
    def update(self, loss):
        accelerator.backward(loss)
        self.optimizer.step()

    def critic(self, fake):
        self.update(self.D(fake).mean())

    def train(self, real):
        fake = self.G(real)  # <- forward=self.G(real)
        self.critic(fake.detach())
        loss = -self.D(fake).mean()  # <- forward=self.D(fake)
        loss.backward()  # <- backward
""",
    "a step of its own": """
for real in loader:
    fake = G(z)  # <- forward=G(z)
    opt_d.step()
    loss = -D(fake).mean()  # <- forward=D(fake)
    loss.backward()  # <- backward
""",
}
RIGHT = {
    "an evaluation beside": """
@torch.no_grad()
def evaluate():
    return [criterion(model(x), y).item() for x, y in loader]

def train():
    for x, y in loader:
        out = model(x)  # <- forward=model(x)
        loss = criterion(out, y)
        loss.backward()  # <- backward
        optimizer.step()
    with torch.no_grad():
        model(x)
""",
    "a teacher": """
def outputs(net, x):
    return net(x)

for x, y in loader:
    with torch.no_grad():
        target = outputs(teacher, x)
        wanted = teacher.encoder(x)
    out = outputs(student, x)
    loss = criterion(student(out), target)  # <- forward=student(out)
    loss.backward()  # <- backward
    optimizer.step()
""",
    "a frozen part": """
class Net(nn.Module):
    def forward(self, x):
        if self.frozen:
            with torch.no_grad():
                x = self.backbone(x)
        else:
            x = self.backbone(x)
        with torch.no_grad():
            self.codes.weight.data.mul_(0.9)
        return self.codes(self.head(x))

for x, y in loader:
    out = model(x)  # <- forward=model(x)
    loss = criterion(out, y)
    loss.backward()  # <- backward
""",
    "steps of other things": """
for x, y in loader:
    out = model(x)  # <- forward=model(x)
    state, reward = env.step(out.argmax(1))
    x = noise_scheduler.step(out, t, x)
    loss = criterion(out, reward)
    loss.backward()  # <- backward
    optimizer.step()
""",
}


def _fix(text: str, folder: Path) -> object:
    path = folder / "train.py"
    before, finding = rulecheck.marked(RULE, Example("import torch\nfrom torch import nn\n" + text, ""), path)
    path.write_text(before)
    return RULE.fix(finding, Sources())


@pytest.mark.parametrize("text", STALE.values(), ids=STALE)
def test_no_copy_of_a_weight_is_used_beyond_what_it_was_made_for(text: str, tmp_path: Path) -> None:
    fix = _fix(text, tmp_path)
    assert isinstance(fix, Advice)
    assert "without gradients" in fix.why or "step" in fix.why


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_copies_may_serve_a_whole_region(text: str, tmp_path: Path) -> None:
    assert isinstance(_fix(text, tmp_path), Edit)


def test_a_model_of_another_file_is_looked_into(tmp_path: Path) -> None:
    model = "class Net(nn.Module):\n    def forward(self, x):\n        {}\n        return self.net(x, y)\n"
    train = "from nets import Net\nfor x in xs:\n    out = model(x)  # <- forward=model(x)\n"
    train += "    loss = criterion(out)\n    loss.backward()  # <- backward\n"
    (tmp_path / "nets.py").write_text(model.format("with torch.no_grad(): y = self.net(x)"))
    fix = _fix(train, tmp_path)
    assert isinstance(fix, Advice)
    assert "self.net" in fix.why and "line 3 of nets.py" in fix.why
    (tmp_path / "nets.py").write_text(model.format("with torch.no_grad(): y = self.other(x)"))
    assert isinstance(_fix(train, tmp_path), Edit)
