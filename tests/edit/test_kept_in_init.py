"""What a method makes anew in each call is made once in ``__init__``, where nothing may change it."""

from __future__ import annotations

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.loading.kept_in_init import made_in_init

TEXT = """\
class Sounds:
    def __init__(self, waves):
        super().__init__()
        self.waves = waves
{init}
    def __getitem__(self, i):
        bank = filters(64)  # <-
        {rest}
"""


def edited(text: str) -> tuple[str, str]:
    """The text with what is made kept, and why not."""
    drafts = Drafts(Sources({"/tmp/nowhere/train.py": text}))
    draft = drafts["/tmp/nowhere/train.py"]
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# <-" in each)
    why = made_in_init(draft, line)
    return draft.render() if not why else text, why


def test_made_once() -> None:
    new, why = edited(TEXT.format(init="", rest="return bank @ self.waves[i], bank.sum()"))
    assert not why
    assert "        self.waves = waves\n        self.bank = filters(64)\n" in new
    assert new.endswith("    def __getitem__(self, i):\n        return self.bank @ self.waves[i], self.bank.sum()\n")


def test_an_attribute_of_that_name_stays() -> None:
    new, why = edited(TEXT.format(init="        self.bank = 3\n", rest="return bank @ self.waves[i]"))
    assert not why and "self.bank = 3\n        self.bank2 = filters(64)\n" in new and "return self.bank2 @" in new


@pytest.mark.parametrize(
    ("init", "rest"),
    [
        ("", "bank *= 2; return bank"),
        ("", "bank[0] = 0; return bank"),
        ("", "bank.mul_(2); return bank"),
        ("", "bank = bank * 2; return bank"),
        ("        return\n", "return bank @ self.waves[i]"),
        ("", "w = bank; w *= 2; return w.clone()"),
        ("", "bank[0].mul_(2); return bank + 1"),
        ("", "bank.numpy().fill(0); return bank + 1"),
        ("", "torch.mul(bank, 2, out=bank); return bank + 1"),
        ("", "return scale(bank, i)"),  # which may write into it
        ("", "return bank, i"),
        ("", "return {'bank': bank[i]}"),
        ("", "del bank"),
        ("        self.all = [self[i] for i in range(9)]\n", "return bank @ self.waves[i]"),
        ("        self.all = list(map(self.__getitem__, waves))\n", "return bank @ self.waves[i]"),
        ("        cache(self)\n", "return bank @ self.waves[i]"),
    ],
)
def test_what_may_change_is_left_alone(init: str, rest: str) -> None:
    text = TEXT.format(init=init, rest=rest)
    new, why = edited(text)
    assert new == text and why


def test_what_the_class_has_or_may_have_keeps_its_name() -> None:
    text = TEXT.format(init="", rest="return bank @ self.waves[i]")
    new, why = edited(f"{text}\n    @property\n    def bank(self):\n        return 3\n")
    assert not why and "self.bank2 = filters(64)\n" in new
    new, why = edited(text.replace("Sounds:", "Sounds(ImageFolder):"))
    assert not why and "self.bank_for_all = filters(64)\n" in new


def test_objects_of_libraries_may_be_called() -> None:
    text = TEXT.format(init="", rest="return bank(self.waves[i])").replace("filters(64)", "torchaudio.MelScale(64)")
    new, why = edited(text)
    assert not why and "return self.bank(self.waves[i])" in new
    assert edited(text.replace("torchaudio.MelScale", "Augmented"))[1]


@pytest.mark.parametrize(
    "text",
    [
        "class Sounds:\n    class Settings:\n        def __init__(self):\n            self.x = 1\n\n"
        "    def __getitem__(self, i):\n        bank = filters(64)  # <-\n        return bank + 1\n",
        "class Sounds:\n    __slots__ = ('x',)\n\n    def __init__(self):\n        self.x = 1\n\n"
        "    def __getitem__(self, i):\n        bank = filters(64)  # <-\n        return bank + 1\n",
        "size = 64\n\nclass Sounds:\n    def __init__(self):\n        size = 32\n        self.x = size\n\n"
        "    def __getitem__(self, i):\n        bank = filters(size)  # <-\n        return bank + 1\n",
        "class Sounds:\n    def __init__(self):\n        self.x = None\n\n    def __getitem__(self, i):\n"
        "        bank = filters(self.x)  # <-\n        return bank + 1\n\nsounds = Sounds()\nsounds.x = 3\n",
        "class Sounds:\n    def __init__(self):\n        self.x = 1\n\n    def __getitem__(self, i):\n"
        "        from numpy import hanning\n        bank = hanning(64)  # <-\n        return bank + 1\n",
        "class Sounds:\n    def __init__(self):\n        self.load()\n\n    def load(self):\n"
        "        self.x = self.one(0)\n\n    def one(self, i):\n"
        "        bank = filters(64)  # <-\n        return bank + i\n",
        "class Sounds:\n    def __getitem__(self, i):\n        bank = filters(64)  # <-\n        return bank\n",
        "class Sounds:\n    def __init__(self, size):\n        self.x = 1\n\n    def __getitem__(self, i):\n"
        "        bank = filters(size)  # <-\n        return bank\n",  # another size
        "class Sounds:\n    def __init__(self):\n        self.x = 1\n\n    def __getitem__(self, i):\n"
        "        bank = filters(64)  # <-\n        return bank\n\n\nclass Noises(Sounds):\n"
        "    def __init__(self):\n        self.x = 2\n",  # has no bank
        "def sound(i):\n    bank = filters(64)  # <-\n    return bank\n",
    ],
)
def test_where_there_is_no_place_to_make_it(text: str) -> None:
    assert edited(text) == (text, edited(text)[1]) and edited(text)[1]
