"""The house rules that can be checked: rooms of a dozen files, one name per class, no metaphors, a short README."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "brinell"
Trees = list[tuple[Path, ast.Module]]
FOLDERS = sorted({f.parent for f in SOURCE.rglob("*.py")})
# One file per verb, and one per family of published networks.
LARGE = {SOURCE / "cli" / "commands": 28}
MOST_FILES = 14
METAPHORS = [
    "door",
    "desk",
    "hands",
    "hand",
    "flight",
    "flights",
    "fly",
    "lane",
    "lanes",
    "fate",
    "fates",
    "foresee",
    "foretold",
    "craft",
    "crafted",
    "crew",
    "hire",
    "hired",
    "bury",
    "buried",
    "told",
    "vain",
    "donor",
    "reborn",
    "seat",
    "seats",
    "watchful",
    "guarded",
    "uneven",
    "leg",
    "legs",
    "donors",
    "desks",
]

# Torch chooses the dtype of these by its default dtype, and the device of all by its default device.
FLOATS = {"zeros", "ones", "empty", "eye", "linspace", "logspace", "rand", "randn", "full", "tensor", "scalar_tensor"}
MADE = FLOATS | {"arange", "as_tensor", "asarray", "randint", "randperm"}
# Networks and tables that are built inside `standard_defaults`.
BUILT = ("models/arch", "models/networks.py", "defences", "data/corruptions", "reproduce/papers/curves.py")
# Arrays of other frameworks bring their dtype.
FOREIGN = ("models/adapters/jax.py", "models/adapters/tensorflow.py")


@pytest.fixture(scope="module")
def trees() -> Trees:
    return [(file.relative_to(SOURCE), ast.parse(file.read_text())) for file in sorted(SOURCE.rglob("*.py"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: str(f.relative_to(SOURCE.parent)))
def test_a_folder_is_one_chapter(folder: Path) -> None:
    files = [f for f in folder.glob("*.py") if not f.name.startswith("__")]
    assert len(files) <= LARGE.get(folder, MOST_FILES), sorted(f.name for f in files)
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert 1 <= len(doc.splitlines()) <= 16
    if len(files) > 3:
        unnamed = [f.stem for f in files if not f.stem.startswith("_") and f"`{f.stem}`" not in doc]
        assert folder in (SOURCE, *LARGE, SOURCE / "models" / "arch") or not unnamed, (
            f"the docstring of {folder.name} does not say what these hold: {unnamed}"
        )


def test_no_two_public_classes_have_one_name(trees: Trees) -> None:
    places = defaultdict(list)
    for file, tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_metaphors_in_names(trees: Trees) -> None:
    names: Counter[str] = Counter()
    for file, tree in trees:
        names.update(f"{file} {part}" for part in file.parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names[f"{file} {node.name}"] += 1
    words = {n: re.findall(r"[A-Z]?[a-z]+", n.split()[1].removesuffix(".py")) for n in names}
    assert sorted(n for n, parts in words.items() if {p.lower() for p in parts} & set(METAPHORS)) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_new_tensor_names_its_dtype_and_device(trees: Trees) -> None:
    """Torch's defaults belong to the user: an eps in the default dtype was once rounded to bfloat16."""
    silent = []
    for file, tree in trees:
        name = file.as_posix()
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=made)) if made in MADE:
                    given = {keyword.arg for keyword in call.keywords}
                    named = "dtype" in given or made not in FLOATS or name in FOREIGN
                    if not (named and "device" in given) and not name.startswith(BUILT):
                        silent.append(f"{name}:{call.lineno}: {ast.unparse(call)}")
    assert silent == [], "name dtype and device (CPU: device='cpu'), or build inside brinell.ops.defaults"
