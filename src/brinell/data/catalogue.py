"""The data sets known by name: what they are, how they are stored, where they are published. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brinell.data.corruptions import COMMON, EXTRA
from brinell.data.labelled_images import FeatureTables, SplitFolders, Textures, TinyImages, TrafficSigns
from brinell.data.layouts import (
    ClassFolders,
    CorruptedArrays,
    CorruptedFolders,
    IdxFiles,
    Layout,
    MatlabFiles,
    PickledBatches,
    VersionedArrays,
)
from brinell.errors import PlanError, did_you_mean

# Kar et al. 2022.
CORRUPTIONS_3D = (
    *("near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d"),
    *("h265_abr", "h265_crf", "iso_noise", "low_light", "xy_motion_blur", "z_motion_blur"),
)


@dataclass(frozen=True)
class DataFile:
    """A published file: its name, its URLs, and its digest ("md5:…" or "sha256:…") if known.

    `holds` lists the top-level entries of an archive; it is empty for other files. A file marked `later` is fetched
    when its subset is first loaded, not with the whole data set.
    """

    name: str
    sources: tuple[str, ...]
    digest: str | None = None
    holds: tuple[str, ...] = ()
    later: bool = False


@dataclass(frozen=True)
class DataSet:
    """A published data set; `sizes` maps every split or version to its number of images.

    `automatic` says whether `load` may download the data set. `preprocessing` is the default preprocessing of pictures.
    `by_hand` tells the user how to get the files if `load` may not download them.
    """

    name: str
    title: str
    paper: str
    classes: int
    sizes: Mapping[str, int]
    layout: Layout
    files: tuple[DataFile, ...] = ()
    automatic: bool = True
    preprocessing: str = "none"
    by_hand: str = ""


TORONTO = "https://www.cs.toronto.edu/~kriz/cifar-{}-python.tar.gz"
HOUSES = "http://ufldl.stanford.edu/housenumbers/{}_32x32.mat"
ZENODO = "https://zenodo.org/records/{}/files/{}.tar?download=1"
RECHT = "https://github.com/modestyachts/CIFAR-10.1/raw/master/datasets/cifar10.1_{}_{}.npy"
ERDA = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/GTSRB_Final_{}.zip"
STANFORD = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
EDINBURGH = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz"
EPFL = "https://datasets.epfl.ch/3dcc/imagenet_3dcc/{}.tar.gz"
KRIZHEVSKY = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
HENDRYCKS = "Hendrycks and Dietterich 2019, arXiv:1903.12261"
IMAGENET_C = {
    "noise": ("e80562d7f6c3f8834afb1ecf27252745", COMMON[:3]),
    "blur": ("2d8e81fdd8e07fef67b9334fa635e45c", COMMON[3:7]),
    "weather": ("33ffea4db4d93fe4a428c40a6ce0c25d", COMMON[7:11]),
    "digital": ("89157860d7b10d5797849337ca2e5c03", COMMON[11:]),
}
IDX_FILES = [f"{split}-{kind}-ubyte.gz" for split in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")]


def _file(url: str, md5: str | None, *holds: str, later: bool = False) -> DataFile:
    name = url.removesuffix("?download=1").rpartition("/")[2]
    return DataFile(name, (url,), None if md5 is None else f"md5:{md5}", holds, later)


def _cifar(classes: int, md5: str, layout: PickledBatches) -> DataSet:
    files = (_file(TORONTO.format(classes), md5, layout.folder),)
    sizes = {"test": 10_000, "train": 50_000}
    return DataSet(f"cifar{classes}", f"CIFAR-{classes}", KRIZHEVSKY, classes, sizes, layout, files)


def _cifar_c(classes: int, record: int, md5: str) -> DataSet:
    title, layout = f"CIFAR-{classes}-C", CorruptedArrays(f"CIFAR-{classes}-C", COMMON, EXTRA)
    files = (_file(ZENODO.format(record, title), md5, title),)
    return DataSet(f"cifar{classes}-c", title, HENDRYCKS, classes, {"test": 10_000}, layout, files)


def _mnist(title: str, paper: str, base: str, *md5s: str) -> DataSet:
    files = tuple(_file(base + name, md5) for name, md5 in zip(IDX_FILES, md5s, strict=True))
    layout = IdxFiles(title.replace("-", ""))
    return DataSet(title.lower(), title, paper, 10, {"test": 10_000, "train": 60_000}, layout, files)


def _imagenet_corrupted(title: str, paper: str, layout: Layout, *files: DataFile, archives: str) -> DataSet:
    by_hand = f"Its {archives}: call brinell data fetch {title.lower()}, or unpack them"
    return DataSet(title.lower(), title, paper, 1000, {"test": 50_000}, layout, files, False, "Res224", by_hand)


_ALL = (
    _cifar(
        10,
        "c58f30108f718f92721af3b95e74349a",
        PickledBatches("cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), "labels"),
    ),
    _cifar(
        100,
        "eb9058c3a382ffc7106e4002c42a8d85",
        PickledBatches("cifar-100-python", ("train",), ("test",), "fine_labels"),
    ),
    _mnist(
        "MNIST",
        "LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document recognition",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
    ),
    _mnist(
        "Fashion-MNIST",
        "Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        *("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        *("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
    ),
    DataSet(
        name="svhn",
        title="SVHN",
        paper="Netzer et al. 2011, Reading digits in natural images with unsupervised feature learning",
        classes=10,
        sizes={"test": 26_032, "train": 73_257, "extra": 531_131},
        layout=MatlabFiles(),
        files=(
            _file(HOUSES.format("test"), "eb5a983be6a315427106f1b164d9cef3"),
            _file(HOUSES.format("train"), "e26dedcc434d2e4c54c9b2d4a06d8373"),
            # Easier training images, more than a gigabyte.
            _file(HOUSES.format("extra"), "a93ce644f1a588dc4d68dda5feec44a7", later=True),
        ),
    ),
    DataSet(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        paper="Russakovsky et al. 2015, arXiv:1409.0575",
        classes=1000,
        sizes={"test": 50_000, "train": 1_281_167},
        layout=ClassFolders(),
        automatic=False,
        preprocessing="Res256Crop224",
        by_hand="Download it with an account at image-net.org, sort the validation images into 1,000 class folders",
    ),
    _cifar_c(10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    _cifar_c(100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),
    _imagenet_corrupted(
        "ImageNet-C",
        HENDRYCKS,
        CorruptedFolders("ImageNet-C", COMMON, EXTRA),
        *(_file(ZENODO.format(2235448, part), md5, *holds) for part, (md5, holds) in IMAGENET_C.items()),
        archives="four archives are large (50 GB)",
    ),
    _imagenet_corrupted(
        "ImageNet-3DCC",
        "Kar, Yeo, Atanov and Zamir 2022, arXiv:2203.01441",
        CorruptedFolders("ImageNet-3DCC", CORRUPTIONS_3D),
        *(_file(EPFL.format(c), None, c) for c in CORRUPTIONS_3D),
        archives="twelve archives are large",
    ),
    DataSet(
        name="cifar10.1",
        title="CIFAR-10.1",
        paper="Recht, Roelofs, Schmidt and Shankar 2018, arXiv:1806.00451",
        classes=10,
        sizes={"v6": 2_000, "v4": 2_021},
        layout=VersionedArrays(("v6", "v4")),
        files=tuple(_file(RECHT.format(v, part), None) for v in ("v6", "v4") for part in ("data", "labels")),
    ),
    DataSet(
        name="gtsrb",
        title="GTSRB, German traffic signs",
        paper="Stallkamp, Schlipsing, Salmen and Igel 2012, Man vs. computer",
        classes=43,
        sizes={"test": 12_630, "train": 39_209},
        layout=TrafficSigns(),
        files=(
            _file(ERDA.format("Test_Images"), "c7e4e6327067d32654124b0fe9e82185", "GTSRB/Final_Test"),
            _file(ERDA.format("Test_GT"), "fe31e9c9270bbcd7b84b7f21a9d9d9e5", "GT-final_test.csv"),
            _file(ERDA.format("Training_Images"), "f33fd80ac59bff73c82d25ab499e03a3", "GTSRB/Final_Training"),
        ),
        preprocessing="Res32",
    ),
    DataSet(
        name="tiny-imagenet",
        title="Tiny-ImageNet",
        paper="Li, Karpathy and Johnson 2016, CS231n: Convolutional neural networks for visual recognition",
        classes=200,
        sizes={"test": 10_000, "train": 100_000},
        layout=TinyImages(),
        files=(_file(STANFORD, "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"),),
    ),
    DataSet(
        name="cinic10",
        title="CINIC-10",
        paper="Darlow, Crowley, Antoniou and Storkey 2018, arXiv:1810.03505",
        classes=10,
        sizes={"test": 90_000, "train": 90_000, "valid": 90_000},
        layout=SplitFolders(),
        files=(_file(EDINBURGH, "6ee4d0c996905fe93221de577967a372", "test", "train", "valid"),),
    ),
    DataSet(
        name="dtd",
        title="Describable Textures (DTD)",
        paper="Cimpoi, Maji, Kokkinos, Mohamed and Vedaldi 2014, arXiv:1311.3618",
        classes=47,
        sizes={"test": 1_880, "train": 1_880, "val": 1_880, "all": 5_640},
        layout=Textures(),
        files=(_file(OXFORD, "fff73e5086ae6bdbea199a49dfb8a4c1", "dtd"),),
        preprocessing="Res32",
    ),
    DataSet(
        name="har",
        title="HAR, human activity recognition with smartphones",
        paper="Anguita, Ghio, Oneto, Parra and Reyes-Ortiz 2013, ESANN",
        classes=6,
        sizes={"test": 2_947, "train": 7_352},
        layout=FeatureTables(),
        automatic=False,
        by_hand="Its digest is not published: download UCI HAR Dataset.zip from archive.ics.uci.edu (number 240), "
        "unpack its files",
    ),
)
SETS = {s.name: s for s in _ALL}


def find(name: str) -> DataSet:
    """Return the data set with this name.

    >>> find("cifar10").title
    'CIFAR-10'
    """
    if name not in SETS and Path(name).exists():
        remedy = f"This is a file or folder of your own: brinell data show {name}."
        raise PlanError(expected="a data set that Brinell knows by name", got=repr(name), remedy=remedy)
    if name not in SETS:
        remedy = did_you_mean(name, SETS, "Check the spelling: no file or folder has this name either.")
        raise PlanError(expected=f"a data set among {', '.join(SETS)}", got=repr(name), remedy=remedy)
    return SETS[name]
