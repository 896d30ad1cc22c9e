"""Scoring services behind HTTP, as black boxes."""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from brinell.errors import InputError, ModelError, one_of
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, digest, numbers, versioned
from brinell.models.wrap import TorchClassifier

# Answers that say "later": too many requests, and what servers and gateways send while they are not well.
LATER = (408, 425, 429, 500, 502, 503, 504)
# No wait between two tries is longer, whatever the service asks for.
LONGEST = 120.0

Array = Any
Encode = Callable[[Array], bytes]
Decode = Callable[[bytes], Any]


def encode_json(x: Array) -> bytes:
    """A batch as {"inputs": [...]}.

    >>> encode_json(np.array([[0.5, 1.0]], np.float32))
    b'{"inputs": [[0.5, 1.0]]}'
    """
    return json.dumps({"inputs": x.tolist()}).encode()


def decode_json(body: bytes) -> Any:
    """The rows in {"outputs": [...]}.

    >>> decode_json(b'{"outputs": [[0.25, 0.75]]}')
    [[0.25, 0.75]]
    """
    return json.loads(body)["outputs"]


@dataclass
class Service:
    """Where to ask, how patiently, and how often at most; counts the requests it sends, repeated ones included."""

    url: str
    headers: Mapping[str, str]
    timeout: float | int
    retries: int
    wait: float | int
    rate: float | int | None
    requests: int = 0
    _next: float = field(default=0.0, repr=False)

    def post(self, body: bytes) -> bytes:
        """The answer to one request, tried again where that may help."""
        for attempt in range(self.retries + 1):
            self._keep_rate()
            self.requests += 1
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                with error:
                    why, asked = f"status {error.code}", error.headers.get("Retry-After")
                if error.code not in LATER:
                    raise self._refused(why, "Check the address, the headers and what encode sends.") from None
            except (OSError, TimeoutError) as error:  # no connection, a broken one, or no answer in time
                why, asked = f"{type(error).__name__}: {error}", None
            if attempt < self.retries:
                time.sleep(self._pause(attempt, asked))
        tries = f"{self.retries + 1} {'try' if self.retries == 0 else 'tries'}"
        raise self._refused(f"{why}, after {tries}", "Ask for less at a time (batch, rate), or raise timeout, retries.")

    def _send(self, body: bytes) -> bytes:
        request = urllib.request.Request(self.url, body, dict(self.headers), method="POST")
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            said: bytes = answer.read()
        return said

    def _refused(self, got: str, remedy: str) -> ModelError:
        return ModelError(expected=f"an answer of {self.url}", got=got, remedy=remedy)

    def _pause(self, attempt: int, asked: str | None) -> float:
        """What the service asks for in seconds, else twice as long each time."""
        try:
            seconds = float(asked) if asked is not None else math.nan
        except ValueError:  # a date: our own clock need not be theirs
            seconds = math.nan
        return min(seconds if seconds >= 0 else self.wait * 2.0**attempt, LONGEST)

    def _keep_rate(self) -> None:
        """Wait until another request is allowed."""
        if self.rate is None:
            return
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.rate


class HttpBridge(Bridge):
    """A service asked about every different row of a batch once, `batch` rows at a time."""

    def __init__(
        self, service: Service, encode: Encode, decode: Decode, batch: int, outputs: str, classes: Any, mark: str
    ) -> None:
        super().__init__(mark)
        self.service, self.encode, self.decode, self.batch = service, encode, decode, batch
        self.outputs, self.classes = outputs, classes

    def answer(self, x: Tensor) -> Tensor:
        """As many requests as the different rows need: a batch is filled up with copies, which cost nothing here."""
        points = numbers(x)
        _, first, place = np.unique(points.reshape(len(points), -1), axis=0, return_index=True, return_inverse=True)
        rows = points[first]
        said = [self._ask(rows[i : i + self.batch]) for i in range(0, len(rows), self.batch)]
        logits = np.concatenate([v.numpy() for v in said])[place.reshape(-1)]
        return as_logits(logits, "logits", len(x)).to(x.device)

    def _ask(self, rows: Array) -> Tensor:
        body = self.service.post(self.encode(rows))
        try:
            said = self.decode(body)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ModelError(
                expected="an answer of the service that decode understands",
                got=f"{type(error).__name__}: {error}; it begins {body[:60]!r}",
                remedy='The default reads JSON {"outputs": [...]}; give your own: decode=….',
            ) from None
        return as_logits(said, self.outputs, len(rows), self.classes)


def from_http(
    url: str,
    *,
    version: str,
    outputs: str = "logits",
    classes: int | None = None,
    encode: Encode = encode_json,
    decode: Decode = decode_json,
    headers: Mapping[str, str] | None = None,
    batch: int = 32,
    timeout: float | int = 30.0,
    retries: int = 5,
    wait: float | int = 0.5,
    rate: float | int | None = None,
    name: str | None = None,
    channels_last: bool = False,
    allow: Iterable[str] = (),
) -> TorchClassifier:
    """A black box from a scoring service: batches are posted to `url`, logits, probabilities or labels come back.

    Method: `encode` makes the body of a request from a float32 array of at most `batch` rows, `decode` reads the rows
    of the answer; by default JSON, {"inputs": …} and {"outputs": …}. Equal rows are asked once. A request without an
    answer within `timeout` seconds, or answered with 408, 425, 429 or a server's error, is repeated up to `retries`
    times, after the time the service asks for or `wait`, 2·`wait`, 4·`wait` … seconds; any other error stops at once.
    `rate` is the largest number of requests per second. Probabilities become logits by a logarithm, at least
    log 1e-30; labels need `classes`. The fingerprint is that of the address, `outputs` and `version`: headers, which
    may hold keys, are not in it. Cost: one row per query and sample.
    """
    one_of("outputs", outputs, OUTPUTS)
    if not url.startswith(("http://", "https://")):
        raise InputError(expected="an address that begins with http:// or https://", got=url, remedy="Write it whole.")
    sound = batch >= 1 and timeout > 0 and retries >= 0 and wait >= 0 and (rate is None or rate > 0)
    if not sound:
        raise InputError(
            expected="batch of at least 1, timeout and rate above 0, retries and wait of at least 0",
            got=f"batch = {batch}, timeout = {timeout}, rate = {rate}, retries = {retries}, wait = {wait}",
            remedy="Leave them out for the defaults.",
        )
    service = Service(url, {"Content-Type": "application/json", **(headers or {})}, timeout, retries, wait, rate)
    mark = digest((), "http", url, outputs, str(classes), versioned("a service", version))
    bridge = HttpBridge(service, encode, decode, batch, outputs, classes, mark)
    label = name if name is not None else url.split("://", 1)[1]
    return classifier(bridge, name=label, differentiable=False, channels_last=channels_last, allow=allow)
