"""A backward computes gradients of weights, and they are dropped unused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.gradients.asked_gradients import asks_for_inputs, beside_optimizers, reads_gradients, without_lines
from advisor.edit.gradients.freezing import Named, detach_handed, freeze_around, freeze_made, needed
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.discarded import at_the_end, discarded_backward
from advisor.evidence.gradients.unused_gradients import unused_backward
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    file_list,
    model_files,
    optimizer_files,
    site_list,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness import layout


# Where no optimizer was seen: what may train the model later, or asks for other gradients.
_TRAINS = re.compile(r"\boptim\b|[Oo]ptimizer|\b(?:SGD|Adam\w*|RMSprop|Adagrad|LBFGS)\(")
_HOOKS, _ASKS = re.compile(r"\bregister_\w*hook\("), re.compile(r"\.backward\(|\bgrad\(|\b(?:jac|hess|vjp|jvp)\w*\(")


class DiscardedGradients(Rule):
    """The loss of one model goes through another one, and the backward computes that one's gradients for nobody.

    A generator learns through the discriminator, an actor through its critic, an image through the network that
    describes it. The backward has to go through that network, to reach what is behind it; its weights' gradients, a
    third of the work, it computes only because they require them. Then ``zero_grad()`` drops them, before the
    network's own loss computes those that its optimizer uses. ``requires_grad_(False)`` around the one backward, or for
    good where nobody trains the network (a teacher's, too), saves them. Where a loss goes back through another network
    for nothing at all, ``detach()`` ends the backward in front of that. The same goes for an attack, which wants the
    gradient of a picture, and for a heatmap, which wants that of a layer's activations, where there is no optimizer.
    Reported where a run showed gradients that were dropped before any optimizer stepped with them, in the same places
    in several steps.

    When not: the script reads these gradients itself (then it is not reported), or clips all by one norm; the result of
    the frozen pass is used for the network's own loss as well.

    Source: OpenAI Spinning Up's DDPG and SAC, which freeze the Q-networks during the policy's step; the CycleGAN
    authors' ``set_requires_grad``; PyTorch notes, "Autograd mechanics", "Setting requires_grad".
    """

    id = "discarded-gradients"
    title = "Compute no gradients that are dropped unused"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        discarded = discarded_backward(evidence)
        if record is None or discarded is None or not record.discarded or evidence.compiled:
            return
        unused = unused_backward(evidence)
        if unused is not None and at_the_end(unused, discarded):
            return  # the rule unused-gradients tells of it
        files = model_files(evidence)
        used = {*files, *optimizer_files(evidence, text_of)}
        others = {each: beside_optimizers(text_of(each)) for each in record.modules if each not in used}
        texts = {each: text_of(each) for each in used} | others
        # What reads others only where it was watched may read these in a step that was not: no line that was not seen.
        seen = {each: {site.line for site in record.gradients_read if site.file == each} for each in texts}
        if any(reads_gradients(without_lines(text, seen[each])) for each, text in texts.items()):
            return
        inside = any(each.inside for each in record.discarded)
        if not record.optimizers and not inside and not any(map(asks_for_inputs, texts.values())):
            return  # a benchmark's, say, which wants a backward for the time that it takes
        kernels = discarded.kernel_scale if (discarded.kernel_scale < 1).any() else None
        change = Change(remove_host_s=discarded.seconds / evidence.inflation, kernel_scale=kernels)
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        models = record.discarded
        alone = next((each.site for each in models if each.site is not None), None)  # computes nothing else of them
        backwards = call_sites(evidence, "backward")
        site = alone or (backwards[0].site if len(backwards) == 1 else None)
        named = " and ".join(dict.fromkeys(map(_named, models)))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The backward {where(site)} computes the gradients of {sum(each.tensors for each in models)} "
            f"tensors of {named}, which no optimizer uses before they are dropped: {discarded.seconds * 1e3:.1f} ms of "
            "the traced step.",
            gain=gain,
            evidence={
                "discarded_s": discarded.seconds,
                "discarded_tensors": sum(each.tensors for each in models),
                "discarded_bytes": sum(each.bytes for each in models),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "models": len(models),
                "alone": alone is not None,
                "held": any(each.held for each in models),
                "inside": inside,
                "all": bool(record.optimizers) or _is_all_there_is([*texts.values()]),
                "parts": tuple(models[0].parts),
                "made": tuple(each.made for each in models if each.made is not None),
                "name": models[0].name,
                "name_file": models[0].file,
                "detached": tuple(_named(each) for each in models if each.branch and each.held),
                "gives": next((each.output for each in record.models if each.cls == models[0].cls), ""),
                "frozen": tuple(_named(each) for each in models if not (each.branch and each.held)),
                "files": files,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        site, held = finding.site, bool(finding.parameters.get("held"))
        if finding.parameters.get("inside"):
            return Advice(
                "Ask for the gradient that a hook reads, and for no other: (gradient,) = torch.autograd.grad(score, "
                f"(activation,)) in place of the backward {where(site)}. It ends at that activation, and computes none "
                "of the weights' gradients. An activation that the next layer changes in place has to be a clone().",
                "which tensor it is, and what else its hook does, only the script's author knows",
            )
        detached, frozen = (" and ".join(file_list(finding, name)) for name in ("detached", "frozen"))
        parts = [f"Detach what {detached} hands to the loss {where(site)}."] if detached else []
        if frozen or not detached:
            when = f"before the loss of {at(site)}, and (True) after its backward" if held else "where it is made"
            parts.append(f"Call requires_grad_(False) on {frozen or 'the model'} {when}.")
        text = " ".join(parts)
        if finding.parameters.get("all") is False:
            return Advice(text, "another part of the script may train the model, or hook gradients of it")
        drafts = Drafts(sources)
        why = _detached(finding, drafts, bool(frozen)) if detached else _frozen(finding, drafts, held)
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
discriminator = Discriminator()  # <- made=Discriminator()
for real in loader:
    fake = generator(noise())
    opt_d.zero_grad()
    loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    # the generator wants to be believed
    verdict = discriminator(fake)
    loss_g = bce(verdict, ones)
    loss_g.backward()  # <-
    opt_g.step()
    print(f"{loss_d.item():.3f} {loss_g.item():.3f}")
""",
            after="""
discriminator = Discriminator()
for real in loader:
    fake = generator(noise())
    opt_d.zero_grad()
    loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    # the generator wants to be believed
    discriminator.requires_grad_(False)
    verdict = discriminator(fake)
    loss_g = bce(verdict, ones)
    loss_g.backward()
    discriminator.requires_grad_(True)
    opt_g.step()
    print(f"{loss_d.item():.3f} {loss_g.item():.3f}")
""",
            parameters={"models": 1, "held": True},
        ),
        Example(  # a part of a model
            before="""
class Learner:
    def update(self, batch):
        loss = self.agent.critic_loss(batch)
        loss.backward()
        self.critic_optimizer.step()
        actor_loss = -self.agent.critic(batch.states, self.agent.actor(batch.states)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()  # <-
        self.actor_optimizer.step()
        return actor_loss.item()
""",
            after="""
class Learner:
    def update(self, batch):
        loss = self.agent.critic_loss(batch)
        loss.backward()
        self.critic_optimizer.step()
        self.agent.critic.requires_grad_(False)
        actor_loss = -self.agent.critic(batch.states, self.agent.actor(batch.states)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.agent.critic.requires_grad_(True)
        self.actor_optimizer.step()
        return actor_loss.item()
""",
            parameters={"models": 1, "held": True, "parts": ("critic",)},
        ),
        Example(  # that nobody trains
            before="""
features = vgg().eval()  # <- made=vgg()
image = content.clone().requires_grad_()
""",
            after="""
features = vgg().eval()
features.requires_grad_(False)
image = content.clone().requires_grad_()
""",
            parameters={"models": 1, "held": False},
        ),
        Example(  # follows what is trained
            before="""
import copy
import torch

teacher = copy.deepcopy(student).eval()  # <- made=copy.deepcopy(student)
with torch.no_grad():
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
""",
            after="""
import copy
import torch

teacher = copy.deepcopy(student).eval()
teacher.requires_grad_(False)
with torch.no_grad():
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
""",
            parameters={"models": 1, "held": False},
        ),
        Example(  # a part that nobody trains, of a model that is
            before="""
class Run:
    def __init__(self, classes):
        self.model = Distiller(student, load(classes)).to(device)  # <- made=Distiller(student, load(classes))
        self.optimizer = SGD(self.model.trainable(), lr=0.1)
""",
            after="""
class Run:
    def __init__(self, classes):
        self.model = Distiller(student, load(classes)).to(device)
        self.model.teacher.requires_grad_(False)
        self.optimizer = SGD(self.model.trainable(), lr=0.1)
""",
            parameters={"models": 1, "held": False, "parts": ("teacher",)},
        ),
        Example(  # of a model that has no name
            before="""
class Restorer(LightningModule):
    def __init__(self):
        super().__init__()
        self.likeness = Likeness()
        self.save_hyperparameters()

trainer.fit(Restorer(), loader)  # <- made=Restorer()
""",
            after="""
class Restorer(LightningModule):
    def __init__(self):
        super().__init__()
        self.likeness = Likeness()
        self.likeness.requires_grad_(False)
        self.save_hyperparameters()

trainer.fit(Restorer(), loader)
""",
            parameters={"models": 1, "held": False, "parts": ("likeness",)},
        ),
        Example(  # others' gradients are clipped
            before="""
student = Student()
criterion = Distillation(load())  # <- made=Distillation(load())
accelerator.clip_grad_norm_(student.parameters(), 5.0)
""",
            after="""
student = Student()
criterion = Distillation(load())
criterion.teacher.requires_grad_(False)
accelerator.clip_grad_norm_(student.parameters(), 5.0)
""",
            parameters={"models": 1, "held": False, "parts": ("teacher",)},
        ),
        Example(  # a loss that goes further back than its optimizer
            before="""
class Trainer:
    def update(self, low, high):
        fake = self.gen(low)
        score = self.critic(fake)
        loss_d = relu(1 - self.critic(high)).mean() + relu(1 + score).mean()
        self.opt_d.zero_grad()
        loss_d.backward(retain_graph=True)  # <-
        self.opt_d.step()
        loss_g = l1_loss(fake, high) - self.critic(fake).mean()
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
        return loss_d.item()
""",
            after="""
class Trainer:
    def update(self, low, high):
        fake = self.gen(low)
        score = self.critic(fake.detach())
        loss_d = relu(1 - self.critic(high)).mean() + relu(1 + score).mean()
        self.opt_d.zero_grad()
        loss_d.backward(retain_graph=True)
        self.opt_d.step()
        loss_g = l1_loss(fake, high) - self.critic(fake).mean()
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
        return loss_d.item()
""",
            parameters={"models": 1, "held": True, "detached": ("Generator",), "name": "self.gen"},
        ),
        Example(  # an attack
            before="""
model = load()  # <- made=load()
model.eval()
for image, label in loader:
    image.requires_grad = True
    loss = cross_entropy(model(image), label)
    model.zero_grad()
    loss.backward()
    found += (model(image + 0.1 * image.grad.sign()).argmax(1) != label).sum().item()
""",
            after="""
model = load()
model.requires_grad_(False)
model.eval()
for image, label in loader:
    image.requires_grad = True
    loss = cross_entropy(model(image), label)
    model.zero_grad()
    loss.backward()
    found += (model(image + 0.1 * image.grad.sign()).argmax(1) != label).sum().item()
""",
            parameters={"models": 1, "held": False},
        ),
        Example(  # one in a training
            before="""
def attacked(model, image, label, steps):
    delta = torch.zeros_like(image, requires_grad=True)
    for _ in range(steps):
        loss = cross_entropy(model(image + delta), label)
        loss.backward()  # <-
        delta.data = (delta + 0.01 * delta.grad.sign()).clamp(-0.03, 0.03)
        delta.grad.zero_()
    return image + delta.detach()
""",
            after="""
def attacked(model, image, label, steps):
    delta = torch.zeros_like(image, requires_grad=True)
    for _ in range(steps):
        model.requires_grad_(False)
        loss = cross_entropy(model(image + delta), label)
        loss.backward()
        model.requires_grad_(True)
        delta.data = (delta + 0.01 * delta.grad.sign()).clamp(-0.03, 0.03)
        delta.grad.zero_()
    return image + delta.detach()
""",
            parameters={"models": 1, "held": True, "name": "model"},
        ),
        Example(
            before="score.backward()  # <-\nheat = relu((activations * gradients.mean((2, 3), True)).sum(1))\n",
            after="",
            parameters={"models": 1, "inside": True},
            advice="torch.autograd.grad(score, (activation,))",
        ),
        Example(
            before="loss_d = bce(netD(netG(noise)), zeros)\nloss_d.backward()  # <-\n",
            after="",
            parameters={"models": 1, "held": True, "detached": ("Generator",), "name": "netG"},
            advice="Detach what Generator hands to the loss",
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                "netD = D()  # <- made=D()\nfor x in loader:\n    score = netD(netG(x))\n    loss = bce(score, ones)\n"
                "    loss.backward()  # <-\n" + line,
                "",
                {"models": 1, "held": True},
            )
            for line in (
                "    (score.mean() + other).backward()\n",
                "    score = score.mean()\n    score.backward()\n",
                "    clip_grad_norm_(parameters, 1.0)\n",
                "    history.append(loss)\n",
            )
        ),
        Example(
            "netD = D()  # <- made=D()\nfor x in loader:\n    run(x).backward()  # <-\n",
            "",
            {"models": 1, "held": True},
        ),
        *(  # who makes an optimizer of them may be anybody
            Example(f"teacher = Net()  # <- made=Net()\n{line}\n", "", {"models": 1, "held": False})
            for line in ("opt = tools.optimizer_of(teacher.parameters())", "fit([*head, *list(teacher.parameters())])")
        ),
        *(
            Example(f"model = {made}  # <- made=Both()\n", "", {"models": 1, "held": False, "parts": parts})
            for made, parts in (
                ("DataParallel(Both())", ("teacher",)),
                ("Both()", ("stages.0",)),
                ("Both()", ("teacher", "codes")),
            )
        ),
        *(  # what gives the model that part
            Example(
                f"class Both(Module):\n{body}\n\nfit(Both(), loader)  # <- made=Both()\n",
                "",
                {"models": 1, "held": False, "parts": ("teacher",)},
            )
            for body in (
                "    def __init__(self):\n        self.student = Net()",
                "    def setup(self):\n        self.teacher = Net()",
                "    def __init__(self):\n        self.teacher = Net()\n        self.teacher = tuned(self.teacher)",
                "    def __init__(self):\n        self.teacher = Net()\n        self.net = copy.copy(self.teacher)",
                "    def __init__(self, net=None):\n        self.teacher = net",
                "    def __init__(self):\n        self.teacher = Net()\n\npre = Both()\nfit(pre, other)",
                "    def __init__(self):\n        self.teacher = Net()\n\ndef tuned(one):\n"
                "    return Adam(one.teacher.parameters())",
                "    def __init__(self):\n        self.teacher = Net()\n\n    def clip(self):\n"
                "        clip_grad_norm_(self.parameters(), 1.0)",
                "    def __init__(self):\n        self.student, self.teacher = build(True), Net()",
                "    def __init__(self):\n        self.student = build(True)\n        self.teacher = Net()\n\n"
                "def build(trained):\n    net = Net()\n    for param in net.parameters():\n"
                "        param.requires_grad_(trained)\n    return net",
                "    def __init__(self, one):\n        if one:\n            self.teacher = Net()\n\n"
                "class Both(Module):\n    def __init__(self):\n        self.teacher = Net()",
            )
        ),
        *(  # what is said of all of it
            Example(
                f"model = Both()  # <- made=Both()\n{line}\n",
                "",
                {"models": 1, "held": False, "parts": ("teacher",)},
            )
            for line in (
                "def clip(module):\n    clip_grad_norm_(module.parameters(), 1.0)",
                "clip_grad_norm_(model.parameters(), 1.0)",
                "for w in model.parameters():\n    w.requires_grad = epoch > 3",
            )
        ),
        *(  # what it computes there is kept where others may read it
            Example(
                f"netD = D()  # <- made=D()\nfor x in loader:\n    {line}\n    netD(netG(x)).mean().backward()  # <-\n",
                "",
                {"models": 1, "held": True},
            )
            for line in ("self.real = netD(x)", "scores['real'] = netD(x)", "scores.append(netD(x))")
        ),
        Example("run(x).backward()  # <-\n", "", {"models": 1, "held": True}),
        *(  # it would go on without its gradients
            Example(
                f"netD = D()  # <- made=D()\nfor x in loader:\n{lines}    opt.step()\n",
                "",
                {"models": 1, "held": True},
            )
            for lines in (
                "    loss = netD(netG(x)).mean()\n    if loss.isnan():\n        continue\n    loss.backward()  # <-\n",
                "    try:\n        loss = netD(netG(x)).mean()\n        loss.backward()  # <-\n"
                "    except RuntimeError:\n        continue\n",
            )
        ),
        *(  # another model begins as a copy of it, shares a part of it, or it is trained later
            Example(
                f"import copy\nimport torch\nteacher = load()  # <- made=load()\n{line}\n",
                "",
                {"models": 1, "held": False},
            )
            for line in (
                "student = copy.deepcopy(teacher)",
                "student.stem = teacher.stem",
                "later = torch.optim.SGD(teacher.parameters(), lr=0.1)",
            )
        ),
        *(
            Example(
                f"for x in loader:\n    fake = netG(x)\n    {line}\n    loss_d.backward()  # <-\n    {later}\n",
                "",
                {"models": 1, "held": True, "detached": ("Generator",), "name": "netG"},
            )
            for line, later in (
                ("loss_d = bce(netD(fake * 2), zeros)", "opt.step()"),
                ("score = netD(fake)\n    loss_d = bce(score, zeros)", "bce(score, ones).backward()"),
                ("opt.step()\n    loss_d = bce(netD(fake), zeros)", "opt.step()"),
                ("fake = netG(fake)\n    loss_d = bce(netD(fake), zeros)", "opt.step()"),
                ("loss_d = bce(netD(other), zeros)", "opt.step()"),
                ("a = 1; loss_d = bce(netD(fake), zeros)", "opt.step()"),
                ("fakes.append(fake)\n    loss_d = bce(netD(fake), zeros)", "bce(netD(fakes[-1]), ones).backward()"),
                ("self.score = netD(fake)\n    loss_d = bce(self.score, zeros)", "opt.step()"),
            )
        ),
    )


def _named(model: layout.DiscardedGradients) -> str:
    return f"{model.cls}.{model.parts[0]}" if len(model.parts) == 1 and model.parts[0] else model.cls


def _is_all_there_is(texts: Iterable[str]) -> bool:
    """Whether the backward that was seen is the one place where a script asks for gradients, and it trains nothing."""
    said = "\n".join(texts)
    return not (_TRAINS.search(said) or _HOOKS.search(said)) and len(_ASKS.findall(said)) == 1


def _detached(finding: Finding, drafts: Drafts, others: bool) -> str:
    """Detach what a model hands to a loss that is not its own; why not, as a clause."""
    if others or finding.parameters.get("models") != 1:
        return "there are several such models"
    site = finding.site
    if site is None or not finding.parameters.get("alone", True):
        return "what is used of them is computed by the same backward, or several compute them"
    if finding.parameters.get("gives", "tensor") != "tensor":
        return "what it returns is no single tensor"
    name, file = (str(finding.parameters.get(key, "")) for key in ("name", "name_file"))
    return detach_handed(drafts, site, Named(None, name, file), (*file_list(finding, "files"), site.file))


def _frozen(finding: Finding, drafts: Drafts, held: bool) -> str:
    """Freeze what nobody's gradients are used of; why not, as a clause."""
    made, site, parts = site_list(finding, "made"), finding.site, file_list(finding, "parts")
    places = (*made, *((site,) if site is not None else ()))
    files = (*file_list(finding, "files"), *(each.file for each in places))
    if finding.parameters.get("models") != 1:
        return "there are several such models"
    name, file = (str(finding.parameters.get(key, "")) for key in ("name", "name_file"))
    model = Named(next(iter(made), None), name, file)
    if not held:
        return freeze_made(drafts, model, files, parts)
    if why := needed(drafts, files):
        return why
    if site is None or not finding.parameters.get("alone", True):
        return "what is used of them is computed by the same backward, or several compute them"
    return freeze_around(drafts, site, model, parts)
