"""Adversarial examples to look at: the easiest, the hardest and some at random, beside their originals."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from brinell.errors import InputError
from brinell.report.charts.png import uri
from brinell.report.figures import minimum_norm, name_of
from brinell.report.outcomes import Floats, Ints, SampleOutcomes
from brinell.results import Run
from brinell.results.run import gather

Image = npt.NDArray[np.float32]
LARGEST = 96  # pixels on a side; larger images are averaged down to it
CHUNK = 512


@runtime_checkable
class SampleSource(Protocol):
    """What gives out samples: ids and inputs, some at a time, as `brinell.Problem` does."""

    def chunks(self, size: int) -> Iterable[Any]:
        """Parts with `ids` and `x`."""
        ...


@dataclass(frozen=True)
class Example:
    """One adversarial example in words and as addresses that hold the images."""

    sample: int
    label: str
    taken_for: str
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
        """How much of a page it takes."""
        return len(self.adversarial) + len(self.original) + len(self.difference)


@dataclass(frozen=True)
class Examples:
    """Groups of pictures and a note about what is not there."""

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
    """So many pictures of each kind, as long as they fit into `room` characters."""
    if not run.images:
        return Examples(note="The adversarials of this Run were verified and not stored (--no-images).")
    broken = np.flatnonzero(s.fell & (s.row >= 0))
    if not len(broken):
        return Examples(note="No attack broke a sample, so there is no adversarial to show.")
    chosen = choose(run, s, broken, each)
    wanted = np.unique(np.concatenate([rows for _, _, rows in chosen]))
    table = run.rows().take(s.row[wanted].tolist())
    if table["adv_shard"].null_count:
        return Examples(note="The adversarials of this Run are not stored.")
    found = gather(run.path, table)
    if not _is_image(found.x.shape[1:]):
        return Examples(note=f"Inputs of shape {found.x.shape[1:]} are no images, so none are shown.")
    hashes = dict(zip(found.ids.tolist(), table["x_sha256"].to_pylist(), strict=True))
    originals = {} if data is None else lookup(data, hashes)
    told = {row["sample_id"]: _words(row, names) for row in table.to_pylist()}
    drawn = {i: _drawn(told[i], x, originals.get(i)) for i, x in zip(found.ids.tolist(), found.x, strict=True)}
    groups = []
    for title, lead, rows in chosen:
        pictures: list[Example] = []
        for picture in (drawn[int(i)] for i in s.ids[rows]):
            room -= picture.bytes
            pictures += [picture] if room > 0 else []
        groups.append((title, lead, tuple(pictures)))
    return Examples(tuple(g for g in groups if g[2]), _note(found.x.shape[1:], bool(originals)))


def choose(run: Run, s: SampleOutcomes, broken: Ints, each: int) -> list[tuple[str, str, Ints]]:
    """Title, explanation and samples of every kind; no sample twice."""
    effort: Floats
    if minimum_norm(run):
        effort = s.distance[broken]
        easy, hard = "smallest distance", "largest distance"
    else:
        soon = run.rows()["first_broken_at"].take(s.row[broken].tolist()).fill_null(0)
        effort = np.float64(s.stage[broken]) * 1e9 + np.asarray(soon, dtype=np.float64)
        easy, hard = "broken by the first attacks, after the fewest passes", "broken last, after the most passes"
    order = broken[np.argsort(effort, kind="stable")]
    easiest = order[:each]
    hardest = order[each:][::-1][:each]
    rest = np.setdiff1d(broken, np.concatenate([easiest, hardest]))
    # The order of hashes is as good as random, and the same each time.
    rest = np.array(sorted(rest.tolist(), key=lambda i: hashlib.sha256(str(s.ids[i]).encode()).digest()), np.int64)
    kinds = (("Easiest", easy, easiest), ("Hardest", hard, hardest), ("At random", "of the others", rest[:each]))
    return [(title, lead, rows) for title, lead, rows in kinds if len(rows)]


def lookup(data: SampleSource, hashes: Mapping[int, str]) -> dict[int, Image]:
    """The inputs with these ids, which must be those the Run was made from."""
    found: dict[int, Image] = {}
    for chunk in data.chunks(CHUNK):
        ids = np.asarray(chunk.ids)
        for place in np.flatnonzero(np.isin(ids, list(hashes))).tolist():
            i, x = int(ids[place]), np.ascontiguousarray(np.asarray(chunk.x[place], dtype=np.float32))
            if hashlib.sha256(x.tobytes()).hexdigest() != hashes[i]:
                raise InputError(
                    expected="the data the Run was made from",
                    got=f"another input under the id {i}",
                    remedy="Pass the same data, loaded and preprocessed alike, or leave it out.",
                )
            found[i] = x
        if len(found) == len(hashes):
            break
    return found


def _words(row: Mapping[str, Any], names: Sequence[str]) -> Example:
    taken = row["adv_pred"]
    return Example(
        sample=row["sample_id"],
        label=name_of(row["label"], names),
        taken_for="?" if taken is None else name_of(taken, names),
        attack=row["attack"],
        passes=row["first_broken_at"],
        distance=row["distance"],
        clean_margin=row["clean_margin"],
        margin=row["adv_margin"],
    )


def _drawn(told: Example, x: Image, original: Image | None) -> Example:
    if original is None:
        return replace(told, adversarial=uri(_bytes(x)))
    change = x - original
    size = float(np.abs(change).max()) or 1.0
    shown = _bytes(0.5 + change / (2 * size), levels=32)  # coarse: noise does not compress
    return replace(
        told, adversarial=uri(_bytes(x)), original=uri(_bytes(original)), difference=uri(shown), amplified=0.5 / size
    )


def _bytes(x: Image, levels: int = 256) -> npt.NDArray[np.uint8]:
    """Height by width by channels, averaged down where too large."""
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
            "A Run stores adversarials only: give the data (--data, problem=…) to see the originals beside them."
        )
    if max(shape[-2:]) > LARGEST:
        parts.append(f"Images are averaged down to at most {LARGEST} pixels on a side.")
    return " ".join(parts)
