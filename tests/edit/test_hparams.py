"""What Lightning's ``save_hyperparameters()`` keeps is changed where the class is made, or in the file it came from."""

from __future__ import annotations

import pytest

from advisor.edit.origins.values import EDITED
from tests.edit.test_settings import attempt

DATA = """\
import lightning as L
from torch.utils.data import DataLoader


class Data(L.LightningDataModule):
    def __init__(self, images, batch_size=4):
        super().__init__()
        {keeps}

    def train_dataloader(self):
        h = self.hparams
        return DataLoader(make(h.images), batch_size={read})


data = {made}
"""


def text(made: str, keeps: str = "self.save_hyperparameters()", read: str = "self.hparams.batch_size") -> str:
    return DATA.format(made=made, keeps=keeps, read=read)


@pytest.mark.parametrize(
    ("made", "after"),
    [
        ("Data(10, batch_size=4)", "Data(10, batch_size=64)"),
        ("Data(10, 4)", "Data(10, 64)"),
        ("Data(10)", "def __init__(self, images, batch_size=64)"),
    ],
)
@pytest.mark.parametrize("read", ["self.hparams.batch_size", "h.batch_size"])
@pytest.mark.parametrize(
    "keeps",
    [
        "self.save_hyperparameters()",
        'self.save_hyperparameters("images", "batch_size")',
        'self.save_hyperparameters(ignore=["images"])',
        'self.save_hyperparameters(ignore="images", logger=False)',
    ],
)
def test_an_argument_that_is_kept_is_changed_where_it_is_given(made: str, after: str, read: str, keeps: str) -> None:
    answer, texts = attempt(text(made, keeps, read), {})
    assert answer == EDITED and after in texts["train.py"]


def test_a_settings_file_behind_it_is_changed() -> None:
    config = "data: {images: 10, batch_size: 4}\nmodel: {width: 4}\n"
    made = 'Data(**yaml.safe_load(open("config.yaml"))["data"])'
    answer, texts = attempt(text(made, read="h.batch_size"), {"config.yaml": config})
    assert (answer, texts) == (EDITED, {"config.yaml": config.replace("batch_size: 4", "batch_size: 64")})


@pytest.mark.parametrize(
    ("keeps", "read"),
    [
        ('self.save_hyperparameters("images")', "h.batch_size"),
        ('self.save_hyperparameters(ignore=["batch_size"])', "h.batch_size"),
        ("self.save_hyperparameters(ignore=IGNORED)", "h.batch_size"),
        ("self.save_hyperparameters(*names)", "h.batch_size"),
        ("pass", "h.batch_size"),
        ("self.save_hyperparameters()", "h.batch"),
        ("self.save_hyperparameters()\n        self.hparams.batch_size = 8", "h.batch_size"),
        ("self.save_hyperparameters()\n        self.hparams['batch_size'] = 4", "h.batch_size"),
        ("self.save_hyperparameters()\n        self.hparams.update({'batch_size': 4})", "h.batch_size"),
        ("self.save_hyperparameters()\n        tune(self.hparams)", "h.batch_size"),
        ("batch_size = batch_size // 1\n        self.save_hyperparameters()", "h.batch_size"),
    ],
)
def test_what_may_be_something_else_is_left_alone(keeps: str, read: str) -> None:
    answer, texts = attempt(text("Data(10, batch_size=4)", keeps, read), {})
    assert answer is None and not texts
