"""Where outputs of a forward under autocast go, by whatever names and functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "amp-autocast")

TO_NUMPY = {
    "returned": """
def predict(x):
    return model(x)  # <- forward=model(x)

for x in xs:
    save(predict(x).cpu().numpy())
""",
    "collected": """
def main():
    outs = []
    for x in xs:
        out = model(x)  # <- forward=model(x)
        outs.append(out.cpu())
    return torch.cat(outs).numpy()
""",
    "handed on": """
def show(scores, names):
    plot(scores.sigmoid().cpu().numpy(), names)

for x in xs:
    out = model(x)  # <- forward=model(x)
    show(out, names)
""",
    "a metric": """
def main():
    from sklearn.metrics import roc_auc_score
    for x, y in xs:
        out = model(x)  # <- forward=model(x)
        preds.append(out.cpu())
    print(roc_auc_score(torch.cat(ys), torch.cat(preds)))
""",
    "a plot": """
import matplotlib.pyplot as plt
figure, axes = plt.subplots(2)
for x in xs:
    out = model(x)  # <- forward=model(x)
    axes[0].plot(out.detach())
""",
    "a table": """
import pandas as pd
for x in xs:
    out = model(x)  # <- forward=model(x)
    rows.append(out)
table = pd.DataFrame({"score": rows})
""",
    "a helper of another file": """
from helpers import to_np
for x in xs:
    out = model(x)  # <- forward=model(x)
    save(to_np(out))
""",
    "a helper of another file, by its module": """
import helpers
for x in xs:
    out = model(x)  # <- forward=model(x)
    save(helpers.shown(data=out, title="scores"))
""",
}
KEPT = {
    "indices": """
for x in xs:
    out = model(x)  # <- forward=model(x)
    found.append(out.topk(5).indices.cpu().numpy())
    named.append(out.max(1)[1].numpy())
""",
    "labels of another function": """
def check(out):
    return np.asarray(out)

for x, y in xs:
    out = model(x)  # <- forward=model(x)
    found.append(check(y))
""",
    "plots and metrics of other types": """
import matplotlib.pyplot as plt
import pandas as pd
from sklearn.metrics import accuracy_score, roc_auc_score
for x, y in xs:
    out = model(x)  # <- forward=model(x)
    loss = criterion(out, y)
    loss.backward()  # <- backward
    losses.append(loss.item())
    print(accuracy_score(y, out.argmax(1)), roc_auc_score(y, out.float().detach()))
    plt.plot(losses)
pd.DataFrame({"loss": losses}).to_csv("losses.csv")
""",
    "helpers of another file that take other types": """
from helpers import accuracy, to_np
for x, y in xs:
    out = model(x)  # <- forward=model(x)
    save(to_np(y), accuracy(out, y))
""",
    "a product inside of the loss": """
def contrast(a, b):
    return (a @ b.t()).logsumexp(1).mean()

for x, y in xs:
    a = model(x)  # <- forward=model(x)
    loss = contrast(a, queue)
    loss.backward()  # <- backward
    queue[place : place + 8] = a.detach()
""",
}
HELPERS = """
import numpy as np

def to_np(x):
    return x.detach().cpu().numpy()

def shown(title, data):
    return title, to_np(data)

def accuracy(out, y):
    return np.mean(out.argmax(1).cpu().numpy() == y.numpy())
"""


def _fix(text: str, folder: Path) -> object:
    path = folder / "train.py"
    (folder / "helpers.py").write_text(HELPERS)
    before, finding = rulecheck.marked(RULE, Example("import numpy as np\nimport torch\n" + text, ""), path)
    path.write_text(before)
    return RULE.fix(finding, Sources())


@pytest.mark.parametrize("text", TO_NUMPY.values(), ids=TO_NUMPY)
def test_bfloat16_does_not_get_to_numpy(text: str, tmp_path: Path) -> None:
    assert not isinstance(_fix(text, tmp_path), Edit)


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_has_another_type_may_go_anywhere(text: str, tmp_path: Path) -> None:
    assert isinstance(_fix(text, tmp_path), Edit)


@pytest.mark.parametrize(("more", "edits"), [(".numpy()", False), (".float().numpy()", True)])
def test_bfloat16_does_not_get_to_numpy_in_the_file_that_calls_a_function(
    more: str, edits: bool, tmp_path: Path
) -> None:
    text = "import torch\n@torch.no_grad()\ndef predict(model, x):\n    return model(x)  # <- forward=model(x)\n"
    before, finding = rulecheck.marked(RULE, Example(text, "", {"device": "cpu"}), tmp_path / "engine.py")
    (tmp_path / "engine.py").write_text(before)
    main = "import numpy as np\nfrom engine import predict\n"
    main += f"np.save('p', torch.cat([predict(net, x) for x in xs]){more})\n"
    (tmp_path / "main.py").write_text(main)
    sources = Sources(modules={str(tmp_path / "engine.py"): "engine", str(tmp_path / "main.py"): ""})
    assert isinstance(RULE.fix(finding, sources), Edit) is edits


ONE_TYPE = {
    "dot": "torch.dot(out[0], weights)",
    "mv": "torch.mv(queue, out[0]).sum()",
    "inner": "torch.inner(out, queue).sum()",
    "lerp": "torch.lerp(out, queue, 0.5).sum()",
    "scatter_add": "torch.zeros(8, 8).scatter_add(0, places, out).sum()",
}


@pytest.mark.parametrize("loss", ONE_TYPE.values(), ids=ONE_TYPE)
@pytest.mark.parametrize(("device", "edits"), [("cpu", False), ("cuda", True)])
def test_products_that_a_cpu_s_autocast_leaves_as_they_are(loss: str, device: str, edits: bool, tmp_path: Path) -> None:
    before = f"""
import torch
for x, y in xs:
    out = model(x)  # <- forward=model(x)
    loss = {loss}
    loss.backward()  # <- backward
"""
    path = tmp_path / "train.py"
    text, finding = rulecheck.marked(RULE, Example(before, "", {"device": device}), path)
    path.write_text(text)
    assert isinstance(RULE.fix(finding, Sources()), Edit) is edits


def test_products_of_two_outputs_have_one_type_anyway(tmp_path: Path) -> None:
    code = "import torch\nfor x in xs:\n    out = model(x){}\n    loss = torch.dot(out[0], out[1])\n"
    code += "    loss.backward(){}\n"
    after = """
import torch
for x in xs:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        loss = torch.dot(out[0], out[1])
    loss.backward()
"""
    before = code.format("  # <- forward=model(x)", "  # <- backward")
    assert rulecheck.example(RULE, Example(before, after, {"device": "cpu"}), tmp_path) == []


def test_a_cpu_s_autocast_still_refuses_what_it_does_not_convert() -> None:
    """Where this fails because a later torch converts it, the rule may let such scripts go."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = torch.nn.Linear(4, 4)(torch.randn(4, 4))
        for product in (torch.dot, torch.inner):
            with pytest.raises(RuntimeError, match="same dtype"):
                product(out[0], torch.randn(4))
