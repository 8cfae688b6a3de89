"""What a loop encodes in each round is encoded in front of it, where that is sure to be the same; else why not."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.python_loops.encoded import encode_before_loop

PATH = "/nowhere/decode.py"


def encoded(code: str) -> tuple[str, str]:
    """The new text, where there is one, and why there is none."""
    drafts = Drafts(Sources({PATH: textwrap.dedent(code).lstrip("\n")}))
    draft = drafts[PATH]
    (call,) = (each for each in draft.nodes(cst.Call) if "decoder_input_ids=" in draft.code(each) and each.args)
    why = encode_before_loop(draft, call)
    return ("" if why else draft.render()), why


def test_encoder_is_called_in_front_of_the_loop() -> None:
    text, why = encoded(
        """
        @torch.inference_mode()
        def greedy(self, batch):
            encoder_outputs = None  # another's
            token = self.start
            # one token after the other
            while not self.done(token):
                if self.verbose:
                    print(token)
                out = self.model(
                    input_features=batch.features,
                    decoder_input_ids=token,
                )
                token = out.logits.argmax(-1)
            return token
        """
    )
    assert not why
    assert (
        "    # one token after the other\n"
        "    encoder_outputs2 = self.model.get_encoder()(input_features=batch.features)\n"
        "    while not self.done(token):\n" in text
    )
    assert "            encoder_outputs=encoder_outputs2,\n            decoder_input_ids=token,\n" in text


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("model(input_ids=x, decoder_input_ids=y)", "no loop"),
        ("for t in r:\n    y = model(x, decoder_input_ids=y)", "only its author"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y, **more)", "only its author"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y, encoder_outputs=e)", "only its author"),
        ("for x in r:\n    y = model(input_ids=x, decoder_input_ids=y)", "something else in each round"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y)\n    x = x[y > 0]", "something else"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y)\n    x[0] = y", "something else"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y)\n    x.add_(1)", "something else"),
        ("for t in r:\n    y = model(input_ids=self.x, decoder_input_ids=y)\n    self.x += 1", "something else"),
        ("for t in r:\n    y = model(input_ids=f(x), decoder_input_ids=y)", "something else"),
        ("for t in r:\n    with torch.no_grad():\n        y = model(input_ids=x, decoder_input_ids=y)", "no loop"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y, global_attention_mask=g)", "only its author"),
        ("for t in r:\n    y = model(input_ids=x, decoder_input_ids=y)\n    y.loss.backward()", "the loop trains"),
        ("for t in r:\n    with f() as x:\n        pass\n    y = model(input_ids=x, decoder_input_ids=y)", "something"),
        ("for t in r:\n    y = model(input_ids=self.x, decoder_input_ids=y)\n    self.refresh()", "something else"),
        ("for t in r:\n    f = lambda y: model(input_ids=x, decoder_input_ids=y)", "no loop"),
    ],
)
def test_what_may_be_another_thing_is_left_alone(loop: str, why: str) -> None:
    text, reason = encoded(f"import torch\n{loop}\n")
    assert not text and why in reason
