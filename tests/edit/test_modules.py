"""A value that another of the script's modules gives is changed there, or not at all."""

from __future__ import annotations

import pytest

from advisor.edit.origins.values import EDITED
from tests.edit.conftest import attempt, check_edit

# The file with the loader comes first. What is changed is marked: the value that the run saw, 4, becomes 64.
EDITS = {
    "argument of the one caller": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "from data import make\nloader = make(ds, [4])\n",
    },
    "callers that agree on a constant": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "import data\nSIZE = [4]\ntrain, val = data.make(a, SIZE), data.make(b, SIZE)\n",
    },
    "of callers that differ the one that was seen": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "from data import make\ntrain, val = make(a, [4]), make(b, 8)\n",
    },
    "default that no caller changes": {
        "data.py": "def make(ds, size=[4]):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "from data import make\nloader = make(ds)\n",
    },
    "default of what a library calls": {
        "data.py": (
            "class Oak(LightningDataModule):\n    def train_dataloader(self, size=[4]):\n"
            "        return DataLoader(ds, batch_size=size)\n"
        ),
        "train.py": "from data import Oak\ntrainer.fit(model, Oak())\n",
    },
    "base class, whose parameters the derived one passes on": {
        "base.py": (
            "class Module:\n    def __init__(self, size=[4], seed=1):\n        self.size = size\n\n"
            "    def loader(self):\n        return DataLoader(self.ds, batch_size=self.size)\n"
        ),
        "oak.py": (
            "from base import Module\n\nclass Oak(Module):\n    def __init__(self, ds, **kwargs):\n"
            "        super().__init__(**kwargs)\n        self.ds = ds\n\nOak(ds, seed=3)\n"
        ),
    },
    "what is made of the derived class": {
        "base.py": (
            "class Module:\n    def __init__(self, size=8):\n        self.size = size\n\n"
            "    def loader(self):\n        return DataLoader(self.ds, batch_size=self.size)\n"
        ),
        "oak.py": "import base\n\nclass Oak(base.Module):\n    pass\n\nOak(size=[4])\n",
    },
    "attribute of the class that it is derived from": {
        "oak.py": "from base import Module\n\nclass Oak(Module):\n    def go(self):\n"
        "        return DataLoader(self.ds, batch_size=self.size)\n",
        "base.py": "class Module:\n    def __init__(self):\n        self.size = [4]\n",
    },
    "field of a dataclass elsewhere": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "config.py": "@dataclass\nclass Config:\n    size: int = field(default=[4], metadata={})\n",
        "train.py": "from data import make\nfrom config import Config\nmake(Config())\n",
    },
    "attribute of an object of settings": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "config.py": "class Config:\n    def __init__(self):\n        self.size = [4]\n",
        "train.py": "from data import make\nfrom config import Config\nconfig = Config()\nmake(config)\n",
    },
    "object of settings that a class keeps": {
        "data.py": (
            "from config import Config\n\nclass Loaders:\n    def __init__(self, cfg):\n        self.cfg = cfg\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.cfg.size)\n\nLoaders(Config(size=[4]))\n"
        ),
        "config.py": "@dataclass\nclass Config:\n    size: int = 8\n",
        "font.py": "class Font:\n    size = 4\n",
    },
    "constant of a package's module": {
        "weave/data.py": "from weave.constants import SIZE\nloader = DataLoader(ds, batch_size=SIZE)\n",
        "weave/constants.py": "SIZE = [4]\n",
    },
    "constant as an attribute of its module": {
        "weave/data.py": "from weave import constants\nloader = DataLoader(ds, batch_size=constants.SIZE)\n",
        "weave/constants.py": "SIZE = [4]\n",
    },
    "constant by way of the package": {
        "train.py": "from weave import SIZE\nloader = DataLoader(ds, batch_size=SIZE)\n",
        "weave/__init__.py": "from .constants import SIZE\n",
        "weave/constants.py": "SIZE = [4]\n",
    },
    "dict of another module, unpacked": {
        "data.py": "from config import LOADER\nloader = DataLoader(ds, **LOADER['train'])\n",
        "config.py": "LOADER = {'train': {'batch_size': [4]}, 'val': {'batch_size': 4}}\n",
    },
    "of the dicts that a key chooses from": {
        "data.py": (
            "KINDS = {'small': dict(), 'short': {'batch_size': 8}, 'long': {'batch_size': [4]}}\n"
            "class Loaders:\n    def __init__(self, kind):\n        self.kwargs = dict(KINDS[kind])\n"
            "    def go(self):\n        return DataLoader(ds, **self.kwargs)\n"
        ),
    },
    "object that a function makes": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "config.py": "@dataclass\nclass Config:\n    size: int = 8\n\ndef read():\n    return Config(size=[4])\n",
        "train.py": "from data import make\nfrom config import read\nmake(read())\n",
    },
    "module of the same package": {
        "pkg/data.py": "from . import config\nloader = DataLoader(ds, batch_size=config.SIZE)\n",
        "pkg/config.py": "SIZE = [4]\n",
        "config.py": "SIZE = 4\n",
    },
    "what a function hands on by its kwargs": {
        "data.py": "def build(ds, **kw):\n    return DataLoader(ds, **kw)\n",
        "train.py": "from data import build\nbuild(train, batch_size=[4])\nbuild(val)\n",
    },
    "dict that is passed on": {
        "data.py": "def make(ds, options):\n    return DataLoader(ds, **options)\n",
        "train.py": "from data import make\nmake(ds, {'shuffle': True, 'batch_size': [4]})\n",
    },
    "dict that a function gives back": {
        "data.py": (
            "import os\n\ndef settings():\n    env = os.environ.get\n    return {'size': int(env('SIZE', [4]))}\n\n"
            "def make():\n    config = settings()\n    return DataLoader(ds, batch_size=config['size'])\n"
        ),
    },
    "default of a variable of the environment, as text": {
        "data.py": "import os\nloader = DataLoader(ds, batch_size=int(os.getenv('SIZE', ['4'])))\n",
    },
    "branches": {
        "data.py": "if fast:\n    size = [4]\nelse:\n    size = 8\nloader = DataLoader(ds, batch_size=size)\n",
    },
    "settings that are passed on by name": {
        "data.py": "def make(ds, batch_size=8, shuffle=True):\n    return DataLoader(ds, batch_size=batch_size)\n",
        "train.py": "from data import make\nconfig = yaml.safe_load(text)\nmake(ds, **config['loader'])\n",
        "a.yaml": "eval:\n  batch_size: 4\nloader:\n  batch_size: [4]\n",
    },
    "settings that are passed on as a whole": {
        "data.py": "def make(config):\n    return DataLoader(ds, batch_size=config['loader']['batch_size'])\n",
        "train.py": "from data import make\nconfig = yaml.safe_load(text)\nmake(config)\n",
        "a.yaml": "eval:\n  batch_size: 4\nloader:\n  batch_size: [4]\n",
    },
    "default of a key that the settings lack": {
        "data.py": "config = read(path)\nloader = DataLoader(ds, batch_size=config['loader'].get('batch_size', [4]))\n",
        "a.yaml": "loader:\n  shuffle: true\n",
    },
}


@pytest.mark.parametrize("files", EDITS.values(), ids=EDITS.keys())
def test_value_is_changed_where_another_module_gives_it(files: dict[str, str]) -> None:
    check_edit(files)


REFUSED = {
    "callers that pass the same number": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "from data import make\ntrain, val = make(a, 4), make(b, 4)\n",
    },
    "a caller whose value is computed": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "from data import make\ntrain, val = make(a, 4), make(b, 2 * n)\n",
    },
    "a library's function of that name": {
        "data.py": "def fit(ds, size=4):\n    return DataLoader(ds, batch_size=size)\n\nfit(ds, n // 2)\n",
        "train.py": "from lightning import fit\nfit(ds)\n",
    },
    "kwargs that are changed on the way": {
        "base.py": (
            "class Module:\n    def __init__(self, size=4):\n        self.size = size\n\n"
            "    def loader(self):\n        return DataLoader(self.ds, batch_size=self.size)\n"
        ),
        "oak.py": (
            "from base import Module\n\nclass Oak(Module):\n    def __init__(self, **kwargs):\n"
            "        kwargs['size'] = n\n        super().__init__(**kwargs)\n\nOak()\n"
        ),
    },
    "two dicts that say the same": {
        "data.py": "KINDS = {'a': {'batch_size': 4}, 'b': {'batch_size': 4}}\nDataLoader(ds, **KINDS[kind])\n",
    },
    "a dict chosen from some that do not say it": {
        "data.py": "KINDS = {'a': {'batch_size': 4}, 'b': {**more}}\nDataLoader(ds, **KINDS[kind])\n",
    },
    "a setting of another section": {
        "data.py": "loader = DataLoader(ds, batch_size=self_made(config).batch_size)\n",
        "a.yaml": "evaluation:\n  batch_size: 4\n",
    },
    "a library's module whose name ends as an own one's": {
        "train.py": "from utils import SIZE\nloader = DataLoader(ds, batch_size=SIZE)\n",
        "lib/utils.py": "SIZE = 4\n",
    },
    "a class that happens to have such an attribute": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "train.py": "from data import make\nmake(OmegaConf.load(path))\n",
        "font.py": "class Font:\n    size = 4\n",
    },
    "a property": {
        "data.py": (
            "class Loaders:\n    @property\n    def size(self):\n        return n\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.size)\n"
        ),
        "font.py": "class Font:\n    size = 4\n",
    },
    "a derived class that sets it otherwise": {
        "base.py": (
            "class Module:\n    size = 4\n\n    def loader(self):\n"
            "        return DataLoader(self.ds, batch_size=self.size)\n"
        ),
        "oak.py": "from base import Module\n\nclass Oak(Module):\n    def setup(self):\n        self.size = n\n",
    },
    "a base class of that name elsewhere": {
        "oak.py": (
            "from torch.nn import Module\n\nclass Oak(Module):\n    def go(self):\n"
            "        return DataLoader(ds, batch_size=self.size)\n"
        ),
        "base.py": "class Module:\n    size = 4\n",
    },
    "an attribute that another module sets": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "config.py": "@dataclass\nclass Config:\n    size: int = 4\n",
        "train.py": "from data import make\nfrom config import Config\nc = Config()\nc.size = int(n)\nmake(c)\n",
    },
    "a constant that another module sets": {
        "data.py": "import config\nloader = DataLoader(ds, batch_size=config.SIZE)\n",
        "config.py": "SIZE = 4\n",
        "train.py": "import config\nconfig.SIZE = int(n)\n",
    },
    "a parameter that is called as a module is": {
        "data.py": "import config\n\ndef make(config):\n    return DataLoader(ds, batch_size=config.SIZE)\n",
        "config.py": "SIZE = 4\n",
    },
    "a constant for want of a module": {
        "train.py": "try:\n    from site_config import SIZE\nexcept ImportError:\n    SIZE = 4\nDataLoader(ds, SIZE)\n",
    },
    "a function under another name": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n\nmake(val, 4)\n",
        "train.py": "from data import make as mk\nmk(ds, int(n))\n",
    },
    "a function that is handed on": {
        "data.py": "def make(ds, size=4):\n    return DataLoader(ds, batch_size=size)\n\nmake(val)\n",
        "train.py": "from data import make\nloader = partial(make, size=n)\n",
    },
    "a table of classes": {
        "data.py": (
            "class Base:\n    def __init__(self, size=4):\n        self.size = size\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.size)\n\n"
            "KINDS = {'base': Base}\nBase()\n"
        ),
        "train.py": "from data import KINDS\nKINDS[kind](size=int(n))\n",
    },
    "a decorator that may pass more": {
        "data.py": "@with_data\ndef make(ds, size, k):\n    return DataLoader(ds, batch_size=size)\n\nmake(8, 4)\n",
    },
    "a method of who knows whom": {
        "data.py": (
            "class A:\n    def fit(self, size=8):\n        return DataLoader(ds, batch_size=size)\n\nA().fit()\n"
        ),
        "train.py": "tok = tokenizer_of(path)\ntok.fit(size=4)\n",
    },
    "a parameter that its kwargs cannot hold": {
        "data.py": (
            "class Base:\n    def __init__(self, size=8):\n        self.size = size\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.size)\n\n"
            "class Oak(Base):\n    def __init__(self, size=8, **kwargs):\n        super().__init__(**kwargs)\n\n"
            "Oak(size=4)\n"
        ),
    },
    "a dict that is changed elsewhere": {
        "data.py": "from config import LOADER\nloader = DataLoader(ds, **LOADER['train'])\n",
        "config.py": "LOADER = {'train': {'batch_size': 4}}\n",
        "train.py": "from config import LOADER\nLOADER['train']['batch_size'] = int(n)\n",
    },
    "a copy that is changed": {
        "data.py": (
            "KINDS = {'a': {'batch_size': 4}}\ncfg = dict(KINDS[kind])\ncfg.update(batch_size=n)\n"
            "DataLoader(ds, **cfg)\n"
        ),
    },
    "a key that what follows may have, too": {
        "data.py": "KINDS = {'a': {'batch_size': 4, **more}}\nDataLoader(ds, **KINDS['a'])\n",
    },
    "a key of which some are not written out": {
        "data.py": "KINDS = {'a': A, 'b': {'batch_size': 4}}\nDataLoader(ds, **KINDS[kind])\n",
    },
    "a variable of the environment that the script sets": {
        "data.py": "import os\nloader = DataLoader(ds, batch_size=int(os.getenv('SIZE', 4)))\n",
        "train.py": "import os\nos.environ['SIZE'] = str(n)\n",
    },
    "a template that a class above calls": {
        "data.py": (
            "class Base:\n    def fit(self):\n        self.loader(n)\n\n"
            "class Oak(Base):\n    def loader(self, size=4):\n        return DataLoader(ds, batch_size=size)\n"
        ),
    },
    "an import in a function": {
        "data.py": "def make(ds, size=4):\n    return DataLoader(ds, batch_size=size)\n\nmake(val)\n",
        "train.py": "def main():\n    from data import make\n    make(ds, int(n))\n",
    },
    "a function that is called by a text": {
        "data.py": "def make(ds, size=4):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "import data\ngetattr(data, 'make')(ds, int(n))\n",
    },
    "a function of a package by its whole name": {
        "pkg/data.py": "def make(ds, size=4):\n    return DataLoader(ds, batch_size=size)\n\nmake(val)\n",
        "train.py": "import pkg.data\npkg.data.make(ds, int(n))\n",
    },
    "a dataclass that is made with something else": {
        "data.py": (
            "@dataclass\nclass Loaders:\n    size: int = 4\n\n    def go(self):\n"
            "        return DataLoader(ds, batch_size=self.size)\n\nLoaders(size=int(n))\n"
        ),
    },
    "an object whose attributes are set by a text": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
        "config.py": "@dataclass\nclass Config:\n    size: int = 4\n",
        "train.py": (
            "from data import make\nfrom config import Config\nc = Config()\n"
            "for key, value in given.items():\n    setattr(c, key, value)\nmake(c)\n"
        ),
    },
    "a name that a function around it binds": {
        "data.py": (
            "def make(ds):\n    size = 4\n\n    def ask():\n        nonlocal size\n        size = int(n)\n\n    ask()\n"
            "    return DataLoader(ds, batch_size=size)\n"
        ),
    },
    "one of two imports": {
        "train.py": (
            "if fast:\n    from a import SIZE\nelse:\n    from b import SIZE\nDataLoader(ds, batch_size=SIZE)\n"
        ),
        "a.py": "SIZE = 8\n",
        "b.py": "SIZE = 4\n",
    },
    "a dict under another name": {
        "data.py": "kw = {'batch_size': 4}\nmore = kw\nmore['batch_size'] = int(n)\nDataLoader(ds, **kw)\n",
    },
    "a dict of the object that is filled later": {
        "data.py": (
            "class Loaders:\n    def __init__(self, **more):\n        self.kw = {'shuffle': True}\n"
            "        self.kw.update(more)\n\n    def go(self):\n        return DataLoader(ds, **self.kw)\n\n"
            "Loaders(batch_size=4)\n"
        ),
    },
    "a computed one among those that a key chooses from": {
        "data.py": "KINDS = {'a': {'batch_size': 4}, 'b': {'batch_size': n}}\nDataLoader(ds, **KINDS[kind])\n",
    },
    "a word of many files": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        **{f"m{i}.py": "from data import make\nloader = make(ds, 4)\n" for i in range(16)},
    },
    "a file that does not parse": {
        "data.py": "def make(ds, size):\n    return DataLoader(ds, batch_size=size)\n",
        "train.py": "make(ds, 4\n",
    },
}


@pytest.mark.parametrize("files", REFUSED.values(), ids=REFUSED.keys())
def test_what_other_modules_leave_open_stays(files: dict[str, str]) -> None:
    assert attempt(files) == (None, {})


def test_option_that_another_module_declares_is_named() -> None:
    files = {
        "data.py": "def make(args):\n    return DataLoader(ds, batch_size=args.batch_size)\n",
        "train.py": (
            "from data import make\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--batch-size', type=int, default=4)\nmake(parser.parse_args())\n"
        ),
    }
    assert attempt(files) == ("--batch-size", {})


@pytest.mark.parametrize("more, edited", [("", True), ("validate(KINDS['b']['batch_size'])\n", False)])
def test_alone_leaves_an_entry_that_something_reads(more: str, edited: bool) -> None:
    files = {
        "data.py": "from kinds import KINDS\nDataLoader(ds, **KINDS[kind])\n",
        "kinds.py": "KINDS = {'a': {'batch_size': 4}, 'b': {'batch_size': 8}}\n" + more,
    }
    answer, changed = attempt(files, alone=True)
    assert (answer == EDITED) == edited == bool(changed)
