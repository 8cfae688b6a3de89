"""A value that an object of settings holds is changed where the object gets it, or not at all."""

from __future__ import annotations

import pytest

from tests.edit.conftest import attempt, check_edit

# As in test_modules.py: the file with the loader comes first, and what is changed is marked.
EDITS = {
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
    "named tuple by position": {
        "data.py": (
            "class C(NamedTuple):\n    lr: float\n    size: int = 8\n\nc = C(4, [4])\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "named tuple's default": {
        "data.py": (
            "class C(typing.NamedTuple):\n    lr: float\n    size: int = [4]\n\nc = C(4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "dataclass by position": {
        "data.py": (
            "@dataclass\nclass C:\n    size: int\n    lr: float = 4\n\nc = C([4], lr=4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
}
REFUSED = {
    "a dataclass by position, of another one": {
        "data.py": (
            "@dataclass\nclass B:\n    lr: float = 4\n\n@dataclass\nclass C(B):\n    size: int = 4\n\nc = C(4, 4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dataclass by position, with a field that is none": {
        "data.py": (
            "@dataclass\nclass C:\n    n: ClassVar[int] = 4\n    size: int = 4\n    lr: float = 4\n\nc = C(4, 8)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a class of attributes by position": {
        "data.py": (
            "@attr.s\nclass C:\n    lr: float = 1\n    size = attr.ib(default=4)\n\nc = C(4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a dataclass by position, with fields that depend": {
        "data.py": (
            "@dataclass\nclass C:\n    if X:\n        lr: int = 4\n    size: int = 4\n    n: int = 2\n\nc = C(4, 4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a plain class by position": {
        "data.py": (
            "class C:\n    size: int = 4\n    lr: float = 4\n\nc = C(8, 4)\n"
            "loader = DataLoader(ds, batch_size=c.size)\n"
        ),
    },
    "a named tuple, what is spread over it": {
        "data.py": (
            "class C(NamedTuple):\n    size: int = 4\n\nc = C(*row)\nloader = DataLoader(ds, batch_size=c.size)\n"
        ),
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
}


@pytest.mark.parametrize("files", EDITS.values(), ids=EDITS.keys())
def test_value_is_changed_where_the_object_gets_it(files: dict[str, str]) -> None:
    check_edit(files)


@pytest.mark.parametrize("files", REFUSED.values(), ids=REFUSED.keys())
def test_what_may_be_another_value_stays(files: dict[str, str]) -> None:
    assert attempt(files) == (None, {})
