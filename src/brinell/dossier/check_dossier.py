"""Check a dossier: its signature, its hashes, and every count, interval and decision that it shows.

Usage: python check_dossier.py DOSSIER [--key KEY] [--run RUN ...]

It needs Python 3.10 and numpy. DOSSIER is a .html or .json file, or a .pdf file with its .json file beside it. KEY is
the signer's public key (PEM file or 64 hex digits) or fingerprint, from another channel; without it, the check shows
only that the embedded key signed this. RUN is a Run, to compare its files. Exit code: 0 valid, 1 refused, 2 misuse.
"""

import argparse
import base64
import hashlib
import html
import json
import math
import re
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np

FORMAT, MOST, MOST_SIZES = "brinell-dossier-1", 20_000, 40  # the most shares, and different numbers of groups
SLOT = re.compile(rb'<script type="text/plain" id="signature">([0-9a-f]{128})</script>')
PAYLOAD = re.compile(r'<script type="application/json" id="payload">([^<]*)</script>')
SHOWN = re.compile(r'<data value="([^"]*)">([^<]*)</data>')
BROKEN, CERTIFIED = 2, 1  # codes in `outcomes` (1 is "withstood") and in `certified`; 0 is "not tried"

# Ed25519 (RFC 8032): the field, the order of the base point, the curve, a square root of -1, DER before a public key.
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)
SPKI = bytes.fromhex("302a300506032b6570032100")


class Refused(Exception):  # noqa: N818
    """The dossier is not what its signer made, or does not hold what it says."""


def add(a, b):
    """Return the sum of two points of the curve, in extended coordinates."""
    s, t = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    u, v = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = t - s, v - u, v + u, t + s
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(n, point):
    """Return n times a point."""
    result = (0, 1, 1, 0)
    while n:
        result = add(result, point) if n & 1 else result
        point, n = add(point, point), n >> 1
    return result


def encode_point(point):
    """Return a point as 32 bytes."""
    x, y = (c * pow(point[2], -1, P) % P for c in point[:2])
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode_point(data):
    """Return the point that 32 bytes encode; raise a ValueError if there is none."""
    sign, y = divmod(int.from_bytes(data, "little"), 1 << 255)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x * ROOT % P if (x * x - square) % P else x
    if len(data) != 32 or y >= P or (x * x - square) % P or (x == 0 and sign):
        raise ValueError("no point of the curve")
    return (x := P - x if (x & 1) != sign else x), y, 1, x * y % P


BASE = decode_point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def verify(public, message, signature):
    """Return whether a signature is that of a message under a public key; raise a ValueError if the key is none."""
    key, s = decode_point(public), int.from_bytes(signature[32:], "little")
    small = encode_point(multiply(8, key)) == encode_point((0, 1, 1, 0))  # such a key accepts too much
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    x, y, z, t = multiply(int.from_bytes(digest, "little") % ORDER, key)
    same = encode_point(add(multiply(s, BASE), (P - x, y, z, P - t))) == signature[:32]
    return same and not small and s < ORDER and len(signature) == 64


def fingerprint(public):
    """Return the fingerprint of a public key: its SHA-256 in groups of four hex digits."""
    return " ".join(re.findall("....", hashlib.sha256(public).hexdigest()))


def signed_message(kind, content):
    """Return the bytes that are signed for a content of a kind: "html", "json" or "pdf"."""
    return f"{FORMAT} {kind} {hashlib.sha256(content).hexdigest()}\n".encode()


def canonical(value):
    """Return JSON as canonical text: sorted keys, no spaces, ASCII, and no character that ends a script element."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def wilson(k, n, confidence=0.95):
    """Return the Wilson score interval of k successes in n trials."""
    if n == 0:
        return 0.0, 1.0
    z2, p = NormalDist().inv_cdf((1 + confidence) / 2) ** 2, k / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return (0.0 if k == 0 else max(0.0, centre - half)), (1.0 if k == n else min(1.0, centre + half))


def unpack(text, kind, *shape):
    """Return an array from base64 text; raise a ValueError if it has not this shape."""
    return np.frombuffer(base64.b64decode(text, validate=True), kind).reshape(shape)


def recount(runs):
    """Return every share of the dossier by its key as (k, n), counted from the outcomes of the samples."""
    found: dict = {}
    for i, run in enumerate(runs):
        samples, n, stages = run["samples"], len(run["samples"]["ids"]), len(run["stages"])
        clean, outcomes = unpack(samples["clean"], "u1", n) == 1, unpack(samples["outcomes"], "u1", n, stages)
        broken = outcomes == BROKEN
        shares = {"clean": clean, "robust": clean & ~broken.any(1)}
        if "certified" in samples:
            shares["certified"] = clean & (unpack(samples["certified"], "u1", n) == CERTIFIED)
        large = len(found) + stages + sum(len(g["values"]) for g in samples["groupings"]) > MOST
        if large or len({str(name) for name in samples["ids"]}) != n:
            raise Refused(f"Run {i + 1} has an id twice, or more than {MOST:,} shares")
        found |= {f"{i}/{what}": (mask.sum(), n) for what, mask in shares.items()}
        found |= {f"{i}/after/{j}": ((clean & ~broken[:, : j + 1].any(1)).sum(), n) for j in range(stages)}
        found |= {f"{i}/broken/{j}": (broken[:, j].sum(), (outcomes[:, j] > 0).sum()) for j in range(stages)}
        for g, grouping in enumerate(samples["groupings"]):
            index = unpack(grouping["index"], "<i4", n)
            for v in range(len(grouping["values"])):
                found |= {f"{i}/by/{g}/{v}/{w}": (m[index == v].sum(), (index == v).sum()) for w, m in shares.items()}
        if (shares.get("certified", clean & False) & broken.any(1)).any():
            raise Refused(f"Run {i + 1} has a sample that is both certified and broken")
    return {key: (int(k), int(n)) for key, (k, n) in found.items()}


def decide(level, shares, runs):
    """Return whether a declared level is met: "met", "not met" or "undecided", and why."""
    key, robust = f"{level['run']}/{level['measure']}", level["measure"] == "robust"
    if key not in shares:
        return "undecided", "no Run of this dossier measures it"
    run, least = runs[level["run"]], level["at_least"] / 100
    (low, high), certified = wilson(*shares[key]), wilson(*shares.get(f"{level['run']}/certified", (0, 0)))
    if not run["finished"] or run["verdict"] == "invalid":
        return "undecided", "the Run is invalid or unfinished"
    if high < least:
        return "not met", "the interval lies below the level"
    if robust and certified[0] >= least > 0:
        return "met", "the interval of the certified accuracy reaches the level"
    if low < least:
        return "undecided", "the level lies inside the interval"
    if robust and run["verdict"] != "reliable":
        return "undecided", f"the verdict on the evaluation is {run['verdict']}"
    return "met", "the interval reaches the level" + ", against the attacks of this dossier" * robust


def numbers(payload):
    """Return what a payload must claim: every share as [k, n, low, high], and the decision on every level."""
    shares = recount(payload["runs"])
    table = {key: [*kn, *(round(end, 6) for end in wilson(*kn))] for key, kn in shares.items()}
    return {"shares": table, "levels": [decide(level, shares, payload["runs"]) for level in payload["levels"]]}


def texts(payload, claims):
    """Return the text of everything that a page shows from the samples, by its key."""
    shown = {f"verdict/{i}": run["verdict"] for i, run in enumerate(payload["runs"])}
    shown |= {f"level/{i}": ": ".join(decision) for i, decision in enumerate(claims["levels"])}
    sizes = sorted({len(g["values"]) for run in payload["runs"] for g in run["samples"]["groupings"]})[:MOST_SIZES]
    for key, (k, n, *_) in claims["shares"].items():
        shown[f"{key}/count"] = f"{k:,} of {n:,}"
        for m in (1, *sizes):
            low, high = (100 * end for end in wilson(k, n, 1 - 0.05 / m))
            text = f"{100 * k / n:.1f} % [{low:.1f}, {high:.1f}], n = {n:,}" if n else "no samples"
            shown[f"{key}/of {m}" if m > 1 else key] = text
    return shown


def read(path):
    """Return the payload of a dossier, its signed contents with their kinds and signatures, and what its page shows."""
    source = (path.with_suffix(".json") if path.suffix == ".pdf" else path).read_bytes()
    if path.suffix == ".html":
        slots, found = list(SLOT.finditer(source)), PAYLOAD.findall(source.decode())
        if len(slots) != 1 or len(found) != 1:
            raise Refused("the page has not exactly one payload and one signature")
        start, end = slots[0].span(1)
        signed = [("html", source[:start] + b"0" * 128 + source[end:], slots[0][1].decode())]
        return json.loads(found[0]), signed, SHOWN.findall(source.decode())
    if (canonical(whole := json.loads(source)) + "\n").encode() != source:
        raise Refused("the file is not in canonical form")
    signed = [("json", canonical(whole["payload"]).encode(), whole["signature"])]
    return whole["payload"], signed + ([("pdf", path.read_bytes(), whole["pdf"])] if path.suffix == ".pdf" else []), []


def check(path, key=None, folders=()):
    """Return a line for everything that was checked; raise an error if something does not hold."""
    payload, signed, shown = read(path)
    if payload["format"] != FORMAT or not payload["public_key"]:
        raise Refused(f"it is a draft without a signature, or not in the format {FORMAT}")
    public = bytes.fromhex(payload["public_key"])
    if not all(verify(public, signed_message(kind, text), bytes.fromhex(value)) for kind, text, value in signed):
        raise Refused("the signature does not fit the content")
    if key and "".join(key.split()).lower() not in (public.hex(), hashlib.sha256(public).hexdigest()):
        raise Refused("it is signed with another key than --key names (a public key or a fingerprint)")
    if json.loads(canonical(claims := numbers(payload))) != payload["numbers"]:
        raise Refused("its counts, intervals or decisions are not those of its samples")
    expected, missing = texts(payload, claims), set(claims["shares"]) - {name.split("/count")[0] for name, _ in shown}
    if any(expected.get(name) != html.unescape(text) for name, text in shown) or (path.suffix == ".html" and missing):
        raise Refused("the page shows other numbers than those of the samples, or not all of them")
    for folder in folders:
        manifest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        files = next((r["files"] for r in payload["runs"] if r["files"]["manifest.json"] == manifest), None)
        if files is None or any(hashlib.sha256((folder / f).read_bytes()).hexdigest() != h for f, h in files.items()):
            raise Refused(f"{folder} is not a Run of this dossier, or one of its files has changed")
    return [
        f"signature  valid, by the key {fingerprint(public)}",
        f"signer     {'the expected key' if key else 'not checked: compare this fingerprint, or pass --key'}",
        f"numbers    {len(claims['shares'])} shares with intervals and {len(claims['levels'])} decisions, recomputed",
        f"page       {len(shown)} numbers, as recomputed" if shown else "page       not read in this format",
        f"runs       the files of {len(folders)} of {len(payload['runs'])} Runs compared",
        f"OK{'' if key and len(folders) == len(payload['runs']) else ' as far as checked: see signer and runs'}",
    ]


def main():
    """Read the arguments, check the dossier and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dossier", type=Path)
    parser.add_argument("--key", nargs="+", default=[], help="public key or fingerprint")
    parser.add_argument("--run", type=Path, action="append", default=[], help="folder of a Run; may be repeated")
    given = parser.parse_args()
    if missing := [str(path) for path in (given.dossier, *given.run) if not path.exists()]:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    if (key := " ".join(given.key)) and Path(key).is_file():
        text = Path(key).read_text()
        if "PRIVATE KEY" in text:
            parser.error(f"{key} is a private key: keep it, and pass the signer's public key or its fingerprint")
        key = base64.b64decode(re.sub("-----.*", "", text)).removeprefix(SPKI).hex()
    try:
        print("\n".join(check(given.dossier, key, given.run)))
    except Exception as error:
        sys.exit(f"REFUSED: {given.dossier}: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
