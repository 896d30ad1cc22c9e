"""Writes the cards of the zoo from the tables of the public leaderboard: src/brinell/models/zoo/cards/*.json.

Run: python benchmarks/zoo_cards.py FOLDER, the folder of robustbench_models.csv and robustbench_checkpoints.csv.
Titles, authors, licences and footnotes are those of the published records (papers.csv and notes.csv in
src/brinell/leaderboard).
"""

import csv
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

from brinell.leaderboard.records import Record, published

CARDS = Path(__file__).resolve().parents[1] / "src" / "brinell" / "models" / "zoo" / "cards"
Row = dict[str, str]
Config = dict[str, Any]

CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}
DATA = {
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2471, 0.2435, 0.2616]},
    "cifar100": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
    "imagenet": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
}
ROUGH = {"mean": [0.491, 0.482, 0.447], "std": [0.247, 0.243, 0.262]}
CARD = {"cifar10": ROUGH, "cifar100": DATA["cifar100"]}
EXACT = {
    "cifar10": {
        "mean": [0.4913997551666284, 0.48215855929893703, 0.4465309133731618],
        "std": [0.24703225141799082, 0.24348516474564, 0.26158783926049628],
    },
    "cifar100": {
        "mean": [0.5070751592371323, 0.48654887331495095, 0.4409178433670343],
        "std": [0.2673342858792401, 0.2564384629170883, 0.27615047132568404],
    },
}
EFFICIENT = {
    "cifar10": DATA["cifar10"],
    "cifar100": {"mean": [0.5071, 0.4867, 0.4408], "std": [0.2675, 0.2565, 0.2761]},
}
MADRY = {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2023, 0.1994, 0.2010]}


def stored(inputs: Config) -> Config:
    return {**inputs, "stored": True}


def wide(depth: int, width: int, spare: bool = False, inputs: Config | None = None) -> Config:
    numbers: Config = {"family": "wide-resnet", "depth": depth, "width": width, "spare": spare}
    return {**numbers, "inputs": inputs} if inputs else numbers


def deepmind(data: str, depth: int, width: int, **more: Any) -> Config:
    return {"family": "deepmind-wide-resnet", "depth": depth, "width": width, **more, "inputs": DATA[data]}


def preact(inputs: Config | None, **more: Any) -> Config:
    return {"family": "preact-resnet", **more, **({"inputs": inputs} if inputs else {})}


def robust_principles(sparse: bool) -> Config:
    numbers = {"depths": [30, 31, 10], "widths": [96, 216, 432, 864], "squeeze": 0.25, "sparse": sparse}
    return {"family": "deepmind-wide-resnet", **numbers, "inputs": DATA["cifar10"]}


def named(data: str) -> dict[str, Config]:
    """Builders without arguments of their own, by name."""
    resnet50 = {"family": "resnet", "block": "bottleneck", "blocks": [3, 4, 6, 3]}
    member = {**resnet50, "block": "pre-bottleneck"}
    card = stored(CARD.get(data, ROUGH))
    return {
        "Augustin2020AdversarialNet": {**resnet50, "inputs": stored(EXACT["cifar10"])},
        "Augustin2020AdversarialWideNet": wide(34, 10, inputs=stored(EXACT["cifar10"])),
        "BoostingWideResNet": {"family": "cosine-wide-resnet", "inputs": stored(DATA["cifar10"])},
        "Chen2020AdversarialNet": {
            "family": "ensemble",
            "n": 3,
            "names": ["branch1", "branch2", "branch3"],
            "inputs": stored(DATA["imagenet"]),
            "member": member,
        },
        "Chen2020EfficientNet": wide(34, 10, True, stored(EFFICIENT.get(data, {}))),
        "Diffenderfer2021CARD": {"family": "pruned-resnet", "inputs": card},
        "Diffenderfer2021CARD_Binary": {"family": "binary-resnet", "inputs": card},
        "Diffenderfer2021CARD_Deck": {
            "family": "ensemble",
            "n": 6,
            "inputs": card,
            "member": {"family": "pruned-resnet"},
        },
        "Diffenderfer2021CARD_Deck_Binary": {
            "family": "ensemble",
            "n": 6,
            "inputs": card,
            "member": {"family": "binary-resnet"},
        },
        "Ding2020MMANet": wide(28, 4, inputs={"per_image": True}),
        "Engstrom2019RobustnessNet": {**resnet50, "inputs": stored(MADRY)},
        "Hendrycks2019UsingNet": wide(28, 10, inputs=HALF),
        "Hendrycks2020AugMixResNeXtNet": {"family": "resnext", "inputs": stored(HALF)},
        "Hendrycks2020AugMixWRNNet": wide(40, 2, inputs=stored(HALF)),
        "Kireev2021EffectivenessNet": preact(stored(DATA["cifar10"])),
        "Modas2021PRIMEResNet18": {"family": "resnet", "inputs": stored(HALF)},
        "ResNest152": {"family": "resnest"},
        "ResNet18": {"family": "resnet"},
        "Rice2020OverfittingNet": wide(34, 20, inputs=stored(DATA["cifar10"]))
        if data == "cifar10"
        else preact(stored(EXACT["cifar100"])),
        "Rice2020OverfittingNetL2": preact(stored(DATA["cifar10"])),
        "Rony2019DecouplingNet": wide(28, 10, inputs=stored(ROUGH)),
        "Wong2020FastNet": preact(stored(DATA["cifar10"]), shortcut="raw", last_norm=False),
        "Wu2020AdversarialNet": wide(34, 10, inputs=stored(EXACT["cifar100"])),
        "get_robustarch_model": robust_principles(False),
        "pssilu_wrn_28_10": {**wide(28, 10), "act": "pssilu"},
        "rebuffi_sodef": {"family": "sodef", "inputs": DATA["cifar10"]},
        "robust_resnet.get_model": {
            "family": "staged-wide-resnet",
            "depths": [27, 28, 13],
            "widths": [160, 448, 384],
            "act": "silu",
            "nested": True,
            "inputs": {**stored(DATA["cifar10"]), "flat": True},
        },
        "RobustWideResNet": {"family": "staged-wide-resnet", "depths": [5, 5, 5], "widths": [320, 640, 512]},
    }


def number(args: str, name: str, otherwise: int) -> int:
    found = re.search(rf"{name}=(\d+)", args)
    return int(found[1]) if found else otherwise


def sparse(data: str, args: str) -> Config | None:
    if data == "imagenet":
        return None
    if "ra_wrn" in args:
        return robust_principles(True)
    depth, width = (int(v) for v in re.findall(r"wrn_(\d+)_(\d+)", args)[0])
    return deepmind(data, depth, width, sparse=True)


def small(row: Row) -> Config | None:
    """The network of a CIFAR model."""
    data, builder, args = row["dataset"], row["builder"], row["builder_args"]
    if builder == "WideResNet":
        depth, width = (
            (34, 10) if args.startswith("34; 10") else (number(args, "depth", 34), number(args, "widen_factor", 10))
        )
        return wide(depth, width, "sub_block1=True" in args)
    if builder == "DMWideResNet":
        return deepmind(data, number(args, "depth", 0), number(args, "width", 0))
    if builder == "DMPreActResNet":
        return {"family": "deepmind-preact-resnet", "depth": number(args, "depth", 18), "inputs": DATA[data]}
    if builder == "PreActResNet":
        return preact(None) if "V2" in args else preact(None, shortcut="raw", last_norm=False)
    if builder == "ResNet":
        return {"family": "resnet"}
    if builder == "get_sparse_model":
        return sparse(data, args)
    if builder == "timm.create_model":
        return transformer(row)
    return named(data).get(builder)


XCIT = {"S12": (384, 8), "M12": (512, 8), "L12": (768, 16)}
RELEASES = "https://github.com/RobustBench/robustbench/releases/download"


def transformer(row: Row) -> Config | None:
    """XCiT and DeiT, which the publications registered with timm."""
    data, size = row["dataset"], row["model_id"].rpartition("-")[2]
    if row["model_id"].startswith("Debenedetti2022"):
        width, heads = XCIT[size]
        config: Config = {
            "family": "timm",
            "name": "xcit_small_12_p16_224",
            "options": {"embed_dim": width, "num_heads": heads},
        }
        if data == "imagenet":
            return config
        # Patches of 4 instead of 16 pixels: the first two of the four convolutions keep the resolution.
        config["options"]["img_size"] = 32
        return {**config, "strides": {"patch_embed.proj.0.0": 1, "patch_embed.proj.2.0": 1}, "inputs": DATA[data]}
    if row["model_id"].startswith("Tian2022"):
        name = {"S": "deit_small_patch16_224", "B": "deit_base_patch16_224"}[size]
        return {"family": "timm", "name": name, "inputs": DATA["imagenet"]}
    return {"family": "alexnet", "inputs": DATA["imagenet"]}


ADDRESSES = {
    "Standard_R50": "https://download.pytorch.org/models/resnet50-0676ba61.pth",
    "AlexNet": "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
}


def released(row: Row) -> str | None:
    """Where a file is that has no id."""
    name, data = row["model_id"], row["dataset"]
    size = name.rpartition("-")[2].lower()[:1]
    if name.startswith("Debenedetti2022"):
        return f"{RELEASES}/v1.1/debenedetti2022light-xcit-{size}-{data}-linf.pth.tar"
    if name.startswith("Tian2022"):
        return f"{RELEASES}/v1.2/tian2022deeper-deit-{size}.pth"
    return ADDRESSES.get(name)


def large(row: Row) -> Config | None:
    """The network of an ImageNet model, where timm has it."""
    builder, args = row["builder"], row["builder_args"]
    if builder == "pt_models.resnet50":
        return {"family": "timm", "name": "wide_resnet50_2"}
    if builder == "timm.create_model":
        return transformer(row)
    if builder != "normalize_model":
        return None
    found = re.search(r"timm.create_model\('(\w+)'", args) or re.search(r"pt_models\.(\w+)\(", args)
    return {"family": "timm", "name": found[1], "inputs": DATA["imagenet"]} if found else None


MISSING = {
    "get_composite_model": "a mixture of two networks and a policy network; no stored layout to check against",
    "get_nonlin_mixed_classifier": "a mixture of two networks through a learnt map; no stored layout to check against",
    "get_convstem_models": "transformers and ConvNeXts with a convolutional stem of their own",
    "get_sparse_model": "MeanSparse around a transformer or ConvNeXt",
    "get_robustarch_model": "the ImageNet network of Robust principles",
    "build_swin_base": "a Swin transformer of the publication's own",
    "build_swin_large": "a Swin transformer of the publication's own",
}
# Published without these buffers.
LACKS = ["mu", "sigma"]
# Published together with parts that were only needed in training.
TRAINED_WITH = (
    "Andriushchenko2020",
    "Augustin2020",
    "Chen2020Efficient",
    "Diffenderfer2021",
    "Engstrom2019",
    "Hendrycks2020AugMix",
    "Huang2022Revisiting",
    "Kireev2021",
    "Pang2020Boosting",
    "Rice2020",
    "Rony2019",
    "Wong2020",
    "Wu2020",
)
SWIN = {
    "when": "layers.0.downsample.reduction.weight",
    "patterns": [[f"^layers\\.{i}\\.downsample\\.", f"layers.{i + 1}.downsample."] for i in range(3)]
    + [["^head\\.(weight|bias)$", "head.fc.\\1"]],
}


def keys(row: Row, config: Config | None) -> Config:
    """How the checkpoint's names become the network's."""
    rules: Config = {}
    if row["model_id"].startswith("Kireev2021") or row["model_id"] == "Andriushchenko2020Understanding":
        rules["entry"] = "last"
    normalised = (config or {}).get("inputs", {})
    if normalised.get("stored") and not row["model_id"].startswith("Modas2021"):
        rules["absent"] = LACKS
    if row["model_id"].startswith(TRAINED_WITH) or row["dataset"] == "imagenet":
        rules["ignore_unknown"] = True
    if (config or {}).get("name", "").startswith("swin"):
        rules["rename"], rules["drop"] = SWIN, ["attn_mask$", "relative_position_index$"]
    return rules


def files(row: Row, config: Config | None) -> list[Config]:
    """Where the weights are, and under which prefix each file belongs."""
    ids = row["google_drive_ids"].split()
    if (url := released(row)) is not None:
        return [{"sources": [url]}]
    many = len(ids) > 1 and (config or {}).get("family") == "ensemble"
    return [{"sources": [f"gdrive:{v}"], **({"into": f"models.{i}."} if many else {})} for i, v in enumerate(ids)]


def share(percent: str) -> float | None:
    return round(float(percent) / 100, 6) if percent else None


def card(row: Row, record: Row, facts: Record, evidence: dict[str, str]) -> Config:
    config = large(row) if row["dataset"] == "imagenet" else small(row)
    if config is not None:
        at = config["member"] if config["family"] == "ensemble" else config
        at["classes"] = CLASSES[row["dataset"]]
    unloadable = ""
    if row["builder"] == "rebuffi_sodef":
        unloadable = "its checkpoint stores the projection as parameters of the orthogonal group"
    return {
        "name": f"{row['dataset']}/{row['threat_model']}/{row['model_id']}",
        "paper": record["link"],
        "title": facts.title,
        "authors": facts.authors,
        "venue": record["venue"],
        "licence": facts.licence or "unknown",
        "footnote": facts.footnote or "",
        "architecture": record["architecture"],
        "network": config,
        "missing": "" if config else MISSING[row["builder"]],
        "unloadable": unloadable,
        "evidence": evidence.get(f"{row['dataset']}/{row['threat_model']}/{row['model_id']}", "none"),
        "preprocessing": row["preprocessing"] or None,
        "files": files(row, config),
        "keys": keys(row, config),
        "eps": record["eps"] or None,
        "clean_accuracy": share(record["clean_acc"]),
        "robust_accuracy": share(record["autoattack_acc"] or record["corruptions_acc"]),
        "best_known": share(record["best_known_external"]),
        "unreliable": record["unreliable_flag"].lower() == "true",
        "extra_data": record["extra_data"].lower() == "true",
    }


def recorded(file: Path) -> dict[str, str]:
    """What there is to compare each network with."""
    with gzip.open(file) as f:
        records = json.load(f)["records"]
    return {"/".join(r[:3]): "logits" if r[5] is not None else "layout" for r in records if r[3] != "unbuilt"}


def main(folder: Path) -> None:
    with (folder / "robustbench_models.csv").open() as f:
        records = {(r["dataset"], r["threat_model"], r["model_id"]): r for r in csv.DictReader(f)}
    facts = {(r.dataset, r.threat, r.name): r for r in published()}
    evidence = recorded(folder.parent / "golden" / "zoo_layouts.json.gz")
    by_data: dict[str, list[Config]] = {name: [] for name in CLASSES}
    with (folder / "robustbench_checkpoints.csv").open() as f:
        for row in csv.DictReader(f):
            key = (row["dataset"], row["threat_model"], row["model_id"])
            by_data[row["dataset"]].append(card(row, records[key], facts[key], evidence))
    for name, found in by_data.items():
        # One card a line: a change shows as that card's.
        lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in found)
        (CARDS / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(f"{name}: {len(found)} cards, {sum(c['network'] is None for c in found)} without a network")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
