"""Which sample has which radius, in Runs where every sample has its own."""

from collections.abc import Iterable, Mapping
from typing import Any

from brinell.errors import RunError
from brinell.results.format.manifest import lookup

# The ids of the samples in the order of identity.threat.eps; only where that is a list.
SAMPLE_IDS = "sample_ids"


def own_radii(manifest: Mapping[str, Any]) -> dict[int, float] | None:
    """The radius of every sample by its id; None where all have one, or the manifest does not say whose they are.

    >>> own_radii({"identity": {"threat": {"eps": [0.1, 0.2]}}, "sample_ids": [7, 3]})
    {7: 0.1, 3: 0.2}
    """
    eps, ids = lookup(manifest, "identity.threat.eps"), manifest.get(SAMPLE_IDS)
    if not isinstance(eps, list) or ids is None:
        return None
    radii = dict(zip(ids, eps, strict=False))
    if len(ids) != len(eps) or len(radii) != len(ids):
        raise RunError(
            expected=f"a sample for each of {len(eps)} radii",
            got=f"{len(radii)} different ones in {SAMPLE_IDS}",
            remedy="The Run is refused.",
        )
    return radii


def joined(manifests: Iterable[Mapping[str, Any]]) -> dict[int, float] | None:
    """The radii of all samples of several Runs, sorted by id, None where there is one for all.

    A Run that does not say whose its radii are is refused, and so are two radii of one sample.
    """
    out: dict[int, float] = {}
    several = False
    for manifest in manifests:
        if not isinstance(lookup(manifest, "identity.threat.eps"), list):
            continue
        several, mine = True, own_radii(manifest)
        if mine is None:
            raise RunError(
                expected=f"Runs that say which sample has which radius ({SAMPLE_IDS} in the manifest)",
                got="one that does not, made by an earlier version",
                remedy="Evaluate that part again.",
            )
        other = sorted(i for i, e in mine.items() if out.get(i, e) != e)
        if other:
            i = other[0]
            raise RunError(
                expected="one radius for each sample",
                got=f"{len(other)} samples with two, the first is {i} ({out[i]:g} and {mine[i]:g})",
                remedy="Merge only Runs of the same threat, with ids that name one sample each.",
            )
        out |= mine
    return dict(sorted(out.items())) if several else None
