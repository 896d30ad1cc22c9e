"""Adversarial examples as images: the easiest, the hardest and some random examples, beside the clean inputs."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from brinell.errors import InputError
from brinell.report.charts.png import data_uri
from brinell.report.figures import minimum_norm, name_of
from brinell.report.outcomes import Floats, Ints, SampleOutcomes
from brinell.results import Run
from brinell.results.run import gather

Image = npt.NDArray[np.float32]
LARGEST = 96  # pixels per side; larger images are averaged down
CHUNK = 512


@runtime_checkable
class SampleSource(Protocol):
    """Data that yields ids and inputs in chunks, as `brinell.Problem` does."""

    def chunks(self, size: int) -> Iterable[Any]:
        """Yield chunks with `ids` and `x`."""
        ...


@dataclass(frozen=True)
class Example:
    """One adversarial example: what its row stores, and its images as data URIs."""

    sample: int | str
    label: str
    prediction: str
    attack: str
    passes: int | None
    distance: float | None
    clean_margin: float
    margin: float | None
    adversarial: str = ""
    original: str = ""
    difference: str = ""
    amplified: float | None = None

    @property
    def bytes(self) -> int:
        """The total length of the data URIs of the example's images, in characters."""
        return len(self.adversarial) + len(self.original) + len(self.difference)


@dataclass(frozen=True)
class Examples:
    """Groups of examples, each with title and explanation, and a note on what is not shown."""

    groups: tuple[tuple[str, str, tuple[Example, ...]], ...] = ()
    note: str = ""


def adversarial_examples(
    run: Run,
    s: SampleOutcomes,
    data: SampleSource | None = None,
    names: Sequence[str] = (),
    each: int = 4,
    room: int = 1_500_000,
) -> Examples:
    """Return up to `each` examples per group, as long as their images fit into `room` characters."""
    if not run.images:
        return Examples(note="This Run verified its adversarials and did not store them (--no-images).")
    broken = np.flatnonzero(s.broken & (s.row >= 0))
    if not len(broken):
        return Examples(note="No attack broke a sample, so there are no adversarial examples.")
    chosen = choose(run, s, broken, each)
    wanted = np.unique(np.concatenate([rows for _, _, rows in chosen]))
    table = run.rows().take(s.row[wanted].tolist())
    if table["adv_shard"].null_count:
        return Examples(note="This Run does not store its adversarials.")
    stored = gather(run.shards, table)
    if not _is_image(stored.x.shape[1:]):
        return Examples(note=f"Inputs of shape {stored.x.shape[1:]} are not images, so none are shown.")
    hashes = dict(zip(stored.ids.tolist(), table["x_sha256"].to_pylist(), strict=True))
    originals = {} if data is None else find_originals(data, hashes)
    examples = {row["sample_id"]: _example(row, names) for row in table.to_pylist()}
    drawn = {
        i: _with_images(examples[i], x, originals.get(i)) for i, x in zip(stored.ids.tolist(), stored.x, strict=True)
    }
    groups = []
    for title, lead, rows in chosen:
        group: list[Example] = []
        for example in (drawn[int(i)] for i in s.ids[rows]):
            room -= example.bytes
            group += [example] if room > 0 else []
        groups.append((title, lead, tuple(group)))
    return Examples(tuple(g for g in groups if g[2]), _note(stored.x.shape[1:], bool(originals)))


def choose(run: Run, s: SampleOutcomes, broken: Ints, each: int) -> list[tuple[str, str, Ints]]:
    """Return title, explanation and indices into `s` of each group of examples; no sample is in two groups."""
    effort: Floats
    if minimum_norm(run):
        effort = s.distance[broken]
        easy, hard = "smallest distance", "largest distance"
    else:
        soon = run.rows()["first_broken_at"].take(s.row[broken].tolist()).fill_null(0)
        effort = np.float64(s.stage[broken]) * 1e9 + np.asarray(soon, dtype=np.float64)
        easy, hard = "broken by the first attacks after the fewest passes", "broken last after the most passes"
    order = broken[np.argsort(effort, kind="stable")]
    easiest = order[:each]
    hardest = order[each:][::-1][:each]
    rest = np.setdiff1d(broken, np.concatenate([easiest, hardest]))
    # Sorting by hash gives a random order that is the same every time.
    rest = np.array(sorted(rest.tolist(), key=lambda i: hashlib.sha256(str(s.ids[i]).encode()).digest()), np.int64)
    kinds = (
        ("Easiest", easy, easiest),
        ("Hardest", hard, hardest),
        ("Random", "random samples among the others", rest[:each]),
    )
    return [(title, lead, rows) for title, lead, rows in kinds if len(rows)]


def find_originals(data: SampleSource, hashes: Mapping[int, str]) -> dict[int, Image]:
    """Return the clean inputs of the ids in `hashes`, by id; raise an InputError if an input has another hash."""
    originals: dict[int, Image] = {}
    for chunk in data.chunks(CHUNK):
        ids = np.asarray(chunk.ids)
        for place in np.flatnonzero(np.isin(ids, list(hashes))).tolist():
            i, x = int(ids[place]), np.ascontiguousarray(np.asarray(chunk.x[place], dtype=np.float32))
            if hashlib.sha256(x.tobytes()).hexdigest() != hashes[i]:
                raise InputError(
                    expected="the data that the Run was made from",
                    got=f"another input with the id {i}",
                    remedy="Pass the same data with the same preprocessing, or leave out problem= (--data).",
                )
            originals[i] = x
        if len(originals) == len(hashes):
            break
    return originals


def _example(row: Mapping[str, Any], names: Sequence[str]) -> Example:
    predicted = row["adv_pred"]
    return Example(
        sample=row["sample_name"] or row["sample_id"],
        label=name_of(row["label"], names),
        prediction="?" if predicted is None else name_of(predicted, names),
        attack=row["attack"],
        passes=row["first_broken_at"],
        distance=row["distance"],
        clean_margin=row["clean_margin"],
        margin=row["adv_margin"],
    )


def _with_images(example: Example, x: Image, original: Image | None) -> Example:
    if original is None:
        return replace(example, adversarial=data_uri(_bytes(x)))
    change = x - original
    size = float(np.abs(change).max()) or 1.0
    shown = _bytes(0.5 + change / (2 * size), levels=32)  # few levels, because noise does not compress
    return replace(
        example,
        adversarial=data_uri(_bytes(x)),
        original=data_uri(_bytes(original)),
        difference=data_uri(shown),
        amplified=0.5 / size,
    )


def _bytes(x: Image, levels: int = 256) -> npt.NDArray[np.uint8]:
    """Return the image as uint8, height by width by channels, downsampled by averaging if it is too large."""
    image = x[None] if x.ndim == 2 else x
    factor = -(-max(image.shape[1:]) // LARGEST)
    if factor > 1:
        c, h, w = image.shape
        h, w = h // factor * factor, w // factor * factor
        image = image[:, :h, :w].reshape(c, h // factor, factor, w // factor, factor).mean((2, 4))
    coarse = (np.clip(image, 0, 1) * (levels - 1)).round() * (255 / (levels - 1))
    return np.ascontiguousarray(coarse.round().astype(np.uint8).transpose(1, 2, 0))


def _is_image(shape: tuple[int, ...]) -> bool:
    return min(shape[-2:], default=0) > 1 and (len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3)))


def _note(shape: tuple[int, ...], originals: bool) -> str:
    parts = []
    if not originals:
        parts.append(
            "A Run stores only adversarials. Pass the data (--data, problem=…) to see the originals beside them."
        )
    if max(shape[-2:]) > LARGEST:
        parts.append(f"Images are averaged down to at most {LARGEST} pixels on a side.")
    return " ".join(parts)
