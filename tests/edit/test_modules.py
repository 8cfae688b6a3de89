"""A value that another of the script's modules gives is changed there, or not at all."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.calls import DATALOADER_PARAMETERS
from advisor.edit.locate import last_name
from advisor.edit.values import EDITED, give

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
    "dataclass in a dataclass, by its factory": {
        "data.py": "def make(cfg):\n    return DataLoader(ds, batch_size=cfg.data.size)\n",
        "config.py": (
            "@dataclass\nclass Data:\n    size: int = [4]\n\n@dataclass\nclass Eval:\n    size: int = 4\n\n"
            "@dataclass\nclass Config:\n    data: Data = field(default_factory=Data)\n"
            "    eval: Eval = field(default_factory=Eval)\n"
        ),
        "train.py": "from data import make\nfrom config import Config\nmake(Config())\n",
    },
    "dataclass in a dataclass, by what its factory passes": {
        "data.py": (
            "@dataclass\nclass Data:\n    size: int = 8\n\n@dataclass\nclass Config:\n"
            "    data: Data = field(default_factory=lambda: Data(size=[4]))\n    eval: Data = Data()\n\n"
            "class Loaders:\n    def __init__(self, cfg: Config):\n        self.cfg = cfg\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.cfg.data.size)\n\n"
            "def main():\n    cfg = Config()\n    Loaders(cfg)\n"
        ),
    },
    "dataclass in a dataclass that the script makes": {
        "data.py": (
            "@dataclass\nclass Data:\n    size: int = 8\n\n@dataclass\nclass Config:\n    data: Data\n\n"
            "cfg = Config(data=Data(size=[4]))\nloader = DataLoader(ds, batch_size=cfg.data.size)\n"
        ),
    },
    "object that an object keeps": {
        "data.py": (
            "class Data:\n    def __init__(self):\n        self.size = [4]\n\n"
            "class Config:\n    def __init__(self):\n        self.data = Data()\n\n"
            "def main(cfg):\n    return DataLoader(ds, batch_size=cfg.data.size)\n\nmain(Config())\n"
        ),
    },
    "field of pydantic": {
        "data.py": (
            "from pydantic import BaseModel, Field\n\nclass Data(BaseModel):\n    size: int = Field([4], gt=0)\n\n"
            "class Config(BaseModel):\n    data: Data = Field(default_factory=Data)\n\n"
            "cfg = Config()\nloader = DataLoader(ds, batch_size=cfg.data.size)\n"
        ),
    },
    "namespace": {
        "data.py": (
            "from types import SimpleNamespace\nargs = SimpleNamespace(size=[4])\nother = SimpleNamespace(size=8)\n"
            "\ndef make(args):\n    return DataLoader(ds, batch_size=args.size)\n\nmake(args)\n"
        ),
    },
    "namespace that is a default": {
        "data.py": (
            "from types import SimpleNamespace\nC = SimpleNamespace(data=SimpleNamespace(size=[4]))\n\n"
            "def main(cfg=C):\n    return DataLoader(ds, batch_size=cfg.data.size)\n\nmain()\n"
        ),
    },
    "values that are given in one line": {
        "data.py": (
            "class Loaders:\n    def __init__(self, ds, size):\n        self.ds, self.size = ds, size\n\n"
            "    def go(self):\n        return DataLoader(self.ds, batch_size=self.size)\n\n"
            "def main():\n    epochs, size = 3, [4]\n    Loaders(ds, size)\n"
        ),
    },
    "namespace in a namespace": {
        "data.py": "from cfg import args\n\nloader = DataLoader(ds, batch_size=args.train.size)\n",
        "cfg.py": (
            "import types\nargs = types.SimpleNamespace(train=types.SimpleNamespace(size=[4]),"
            " test=types.SimpleNamespace(size=4))\n"
        ),
    },
    "namespace of a dict": {
        "data.py": (
            "import argparse\nSETTINGS = {'size': [4], 'n': 8}\nargs = argparse.Namespace(**SETTINGS)\n"
            "loader = DataLoader(ds, batch_size=args.size)\n"
        ),
    },
    "dict that is read by attributes": {
        "data.py": (
            "from easydict import EasyDict as edict\nC = edict({'train': {'size': [4]}, 'val': {'size': 4}})\n"
            "loader = DataLoader(ds, batch_size=C.train.size)\n"
        ),
    },
    "own dict that is read by attributes": {
        "data.py": (
            "class Attrs(dict):\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
            "        self.__dict__ = self\n\nC = Attrs(size=[4])\nother = Attrs(size=8)\n"
            "loader = DataLoader(ds, batch_size=C.size)\n"
        ),
    },
    "node of settings whose attributes are assigned": {
        "data.py": "def make(config):\n    return DataLoader(ds, batch_size=config.DATA.SIZE)\n",
        "config.py": (
            "from yacs.config import CfgNode as CN\n_C = CN()\n_C.DATA = CN()\n_C.DATA.SIZE = [4]\n"
            "\ndef get(args):\n    config = _C.clone()\n    config.merge_from_list(args.opts)\n    return config\n"
        ),
        "train.py": "from data import make\nfrom config import get\nmake(get(args))\n",
    },
    "settings without sections whose attributes are assigned": {
        "data.py": "def make(config):\n    return DataLoader(ds, batch_size=config.size)\n",
        "config.py": (
            "import ml_collections\n\ndef get_config():\n    c = ml_collections.ConfigDict()\n    c.size = [4]\n"
            "    return c\n"
        ),
        "train.py": "from data import make\nfrom config import get_config\nmake(get_config())\n",
    },
    "attribute that the script gives an object": {
        "data.py": (
            "args = parser.parse_args()\nargs.size = [4]\n\ndef make(args):\n"
            "    return DataLoader(ds, batch_size=args.size)\n\nmake(args)\n"
        ),
    },
    "settings of one of two sections": {
        "data.py": "def make(config):\n    return DataLoader(ds, batch_size=config.TRAIN.SIZE)\n",
        "config.py": (
            "from yacs.config import CfgNode as CN\n_C = CN()\n_C.TRAIN = CN()\n_C.TRAIN.SIZE = [4]\n"
            "_C.TEST = CN()\n_C.TEST.SIZE = 4\n"
        ),
    },
    "object of another module, as its attribute": {
        "data.py": "import config\nloader = DataLoader(ds, batch_size=config.cfg.data.size)\n",
        "config.py": (
            "@dataclass\nclass Data:\n    size: int = [4]\n\n@dataclass\nclass Config:\n"
            "    data: Data = field(default_factory=Data)\n\ncfg = Config()\n"
        ),
    },
    "object that a dataclass is made with": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int = 8\n\n@dataclass\nclass T:\n    cfg: C = field(default_factory=C)\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=self.cfg.size)\n\nT(cfg=C(size=[4])).go()\n"
        ),
    },
    "object of settings beside a model's setattr": {
        "data.py": (
            "from types import SimpleNamespace\n\ndef swap(module, name, new):\n    setattr(module, name, new)\n\n"
            "c = SimpleNamespace(size=[4])\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "item of a dict that may be left out": {
        "data.py": (
            "CFG = {'size': [4]}\n\ndef make(cfg):\n    return DataLoader(ds, batch_size=cfg.get('size', 4))\n\n"
            "make(CFG)\n"
        ),
    },
    "what stands for an item that is left out": {
        "data.py": (
            "CFG = {'lr': 4}\n\ndef make(cfg):\n    return DataLoader(ds, batch_size=cfg.get('size', [4]))\n\n"
            "make(CFG)\n"
        ),
    },
    "default of a key that the settings lack": {
        "data.py": "config = read(path)\nloader = DataLoader(ds, batch_size=config['loader'].get('batch_size', [4]))\n",
        "a.yaml": "loader:\n  shuffle: true\n",
    },
}


def _imported_as(path: str) -> str:
    name = str(Path(path).relative_to("/nowhere").with_suffix("")).replace("/", ".")
    return name.removesuffix(".__init__")


def attempt(files: dict[str, str], alone: bool = False) -> tuple[str | None, dict[str, str]]:
    """What `give` answers for the DataLoader of the first of the files, and the texts of those that are changed."""
    texts = {f"/nowhere/{path}": textwrap.dedent(text) for path, text in files.items()}
    modules = {path: _imported_as(path) for path in texts if path.endswith(".py")}
    drafts = Drafts(Sources(texts, settings=[path for path in texts if path not in modules], modules=modules))
    draft = drafts[next(iter(modules))]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    answer = give(drafts, draft, call, "batch_size", "64", DATALOADER_PARAMETERS, 4, alone=alone)
    edit = drafts.edit("")
    changed = edit.texts if edit is not None else {}
    return answer, {str(Path(path).relative_to("/nowhere")): text for path, text in changed.items()}


@pytest.mark.parametrize("files", EDITS.values(), ids=EDITS.keys())
def test_value_is_changed_where_another_module_gives_it(files: dict[str, str]) -> None:
    before = {path: text.replace("[4]", "4").replace("['4']", "'4'") for path, text in files.items()}
    after = {path: text.replace("[4]", "64").replace("['4']", '"64"') for path, text in files.items()}
    changed = {path: text for path, text in after.items() if text != before[path]}
    assert len(changed) == 1
    assert attempt(before) == (EDITED, changed)


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
    "a dataclass in a dataclass that is made anew": {
        "data.py": (
            "@dataclass\nclass Data:\n    size: int = 4\n\n@dataclass\nclass Config:\n"
            "    data: Data = field(default_factory=Data)\n\ncfg = Config()\ncfg.data = read(path)\n"
            "loader = DataLoader(ds, batch_size=cfg.data.size)\n"
        ),
    },
    "a dataclass in one of two dataclasses that agree": {
        "data.py": (
            "@dataclass\nclass A:\n    size: int = 4\n\n@dataclass\nclass B:\n    size: int = 4\n\n"
            "@dataclass\nclass Config:\n    data: Any = None\n\n"
            "cfg = Config(data=A() if fast else B())\nloader = DataLoader(ds, batch_size=cfg.data.size)\n"
        ),
    },
    "namespaces that agree": {
        "data.py": (
            "from types import SimpleNamespace\n\ndef make(args):\n    return DataLoader(ds, batch_size=args.size)\n"
            "\nmake(SimpleNamespace(size=4))\nmake(SimpleNamespace(size=4))\n"
        ),
    },
    "a dict read by attributes that is changed by key": {
        "data.py": (
            "from easydict import EasyDict\nC = EasyDict({'size': 4})\nC['size'] = int(n)\n"
            "loader = DataLoader(ds, batch_size=C.size)\n"
        ),
    },
    "a namespace that is filled by a text": {
        "data.py": (
            "from types import SimpleNamespace\nC = SimpleNamespace(size=4)\nvars(C).update(given)\n"
            "loader = DataLoader(ds, batch_size=C.size)\n"
        ),
    },
    "an attribute of another section": {
        "data.py": (
            "from yacs.config import CfgNode as CN\n_C = CN()\n_C.TEST = CN()\n_C.TEST.SIZE = 4\n"
            "loader = DataLoader(ds, batch_size=_C.DATA.SIZE)\n"
        ),
    },
    "an attribute of some other object": {
        "data.py": "net.size = 4\n\ndef make(cfg):\n    return DataLoader(ds, batch_size=cfg.size)\n",
    },
    "an attribute that two places assign": {
        "data.py": (
            "def make(cfg):\n    if fast:\n        cfg.size = 4\n    else:\n        cfg.size = 4\n"
            "    return DataLoader(ds, batch_size=cfg.size)\n"
        ),
    },
    "an attribute that an option sets alike": {
        "data.py": (
            "parser.add_argument('--size', type=int, default=4)\nargs = parser.parse_args()\nif args.fast:\n"
            "    args.size = 4\nloader = DataLoader(ds, batch_size=args.size)\n"
        ),
    },
    "an attribute with a default that says the same": {
        "data.py": "class Config:\n    size = 4\n\nloader = DataLoader(ds, batch_size=cfg.size)\n",
        "train.py": "def fast(cfg):\n    cfg.size = 4\n",
    },
    "an attribute that the settings may give": {
        "data.py": "cfg = read(path)\nif fast:\n    cfg.size = 4\nloader = DataLoader(ds, batch_size=cfg.size)\n",
        "a.yaml": "size: 4\nother: 3\n",
        "b.yaml": "size: 4\n",
    },
    "an item that a part of the dict may have": {
        "data.py": "CFG = {'lr': 4, **more}\nloader = DataLoader(ds, batch_size=CFG.get('size', 4))\n",
    },
    "an item that is put in": {
        "data.py": "CFG = {'lr': 4}\nCFG['size'] = int(n)\nloader = DataLoader(ds, batch_size=CFG.get('size', 4))\n",
    },
    "an option, or what a branch sets": {
        "data.py": (
            "parser.add_argument('--size', default=8)\nargs = parser.parse_args()\nif args.debug:\n"
            "    args.size = 4\nloader = DataLoader(ds, batch_size=args.size)\n"
        ),
    },
    "a namespace, or what a branch sets": {
        "data.py": (
            "from types import SimpleNamespace\nc = SimpleNamespace(size=4)\nif fast:\n    c.size = 4\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "what a branch sets of settings that are read": {
        "data.py": "c = read(path)\nif fast:\n    c.size = 4\nloader = DataLoader(ds, batch_size=c.size)\n",
    },
    "an object of that name in another function": {
        "data.py": (
            "def demo():\n    args = parse()\n    args.size = 4\n\ndef train(args):\n"
            "    return DataLoader(ds, batch_size=args.size)\n\ntrain(read(path))\n"
        ),
    },
    "another namespace": {
        "data.py": (
            "from types import SimpleNamespace\nfont = SimpleNamespace()\nfont.size = 4\n\ndef make(cfg):\n"
            "    return DataLoader(ds, batch_size=cfg.size)\n\nmake(read(path))\n"
        ),
    },
    "a node of settings that is merged with others": {
        "data.py": (
            "from yacs.config import CfgNode\nc = CfgNode()\nc.size = 4\nc.merge_from_list(['size', '4'])\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a namespace that is updated": {
        "data.py": (
            "from easydict import EasyDict\nc = EasyDict({'size': 4})\nc.update(given)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a namespace that gets items": {
        "data.py": (
            "from easydict import EasyDict\nc = EasyDict({'size': 4})\nfor k, v in given.items():\n"
            "    c[k] = v\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a namespace that a library updates": {
        "data.py": (
            "from omegaconf import OmegaConf\nc = OmegaConf.create({'size': 4})\n"
            "OmegaConf.update(c, 'size', n)\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a section that is updated": {
        "data.py": (
            "from easydict import EasyDict\nc = EasyDict({'a': {'size': 4}})\nc['a'].update(given)\n"
            "loader = DataLoader(ds, batch_size=c.a.size)\n"
        ),
    },
    "a namespace for options": {
        "data.py": (
            "import argparse\nc = argparse.Namespace(size=4)\nparser.parse_args(namespace=c)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a name that only the class has": {
        "data.py": (
            "from types import SimpleNamespace\nc = read()\n\nclass T:\n    c = SimpleNamespace(size=4)\n\n"
            "    def go(self):\n        return DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dict that only the class has": {
        "data.py": (
            "KW = read()\n\nclass T:\n    KW = {'batch_size': 4}\n\n    def go(self):\n"
            "        return DataLoader(ds, **KW)\n"
        ),
    },
    "a name that a function imports": {
        "data.py": (
            "from types import SimpleNamespace\nc = SimpleNamespace(size=4)\n\ndef go():\n"
            "    from lib import c\n    return DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "an object for want of a module": {
        "data.py": (
            "from types import SimpleNamespace\ntry:\n    from local import c\nexcept ImportError:\n"
            "    c = SimpleNamespace(size=4)\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dataclass that another is made with, computed": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int = 4\n\n@dataclass\nclass T:\n"
            "    cfg: C = field(default_factory=C)\n\n    def go(self):\n"
            "        return DataLoader(ds, batch_size=self.cfg.size)\n\nT(cfg=C(size=n)).go()\n"
        ),
    },
    "a dataclass that changes what it was given": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int = 8\n\n    def up(self):\n"
            "        self.size = self.size * n\n\nc = C(size=4)\nc.up()\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dataclass that checks its fields": {
        "data.py": (
            "class C(BaseModel):\n    size: int = 4\n\n    @field_validator('size')\n"
            "    def at_most(cls, v):\n        return min(v, n)\n\nc = C()\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "settings of the environment": {
        "data.py": (
            "class C(BaseSettings):\n    size: int = 4\n\nc = C()\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a class that a decorator makes another": {
        "data.py": "@from_env\nclass C:\n    size: int = 4\n\nc = C()\nloader = DataLoader(ds, batch_size=c.size)\n",
    },
    "one line for two attributes": {
        "data.py": "c = read(path)\nc.size = c.other = 4\nloader = DataLoader(ds, batch_size=c.size)\n",
    },
    "what a function in it gives back": {
        "data.py": (
            "from types import SimpleNamespace\ndef get():\n    def inner():\n"
            "        return SimpleNamespace(size=4)\n    yield inner\n\nc = get()\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dict that a function fills": {
        "data.py": (
            "CFG = {'lr': 4}\n\ndef fill(d):\n    d['size'] = 4\n\nfill(CFG)\n"
            "loader = DataLoader(ds, batch_size=CFG.get('size', 4))\n"
        ),
    },
    "an object that is set by its method": {
        "data.py": (
            "from types import SimpleNamespace\nc = SimpleNamespace(size=4)\nc.__setattr__('size', n)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "an object whose variables are set": {
        "data.py": (
            "from types import SimpleNamespace\nc = SimpleNamespace(size=4)\nvars(c)['size'] = n\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a class above that comes first": {
        "data.py": (
            "class A1:\n    def __init__(self):\n        self.size = n\n\nclass A(A1):\n    pass\n\n"
            "class B:\n    size = 4\n\nclass C(A, B):\n    def go(self):\n"
            "        return DataLoader(ds, batch_size=self.size)\n"
        ),
    },
    "a class that is made of what was read": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int = 4\n\n    @classmethod\n    def load(cls, path):\n"
            "        return cls(**read(path))\n\nc = C.load(path)\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a class that a library makes of a dict": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int = 4\n\nc = dacite.from_dict(C, given)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a module that does not parse": {
        "data.py": "from config import C\nc = C()\nloader = DataLoader(ds, batch_size=c.size)\n",
        "config.py": "class C:\n    size = 4 4\n",
    },
    "values of which one is made of others": {
        "data.py": "size, *rest = 4, 8, n\nloader = DataLoader(ds, batch_size=size)\n",
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
