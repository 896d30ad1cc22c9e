"""Adapter for scoring services behind HTTP, as black boxes."""

import base64
import json
import math
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, IncompleteRead
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
from torch import Tensor

from brinell.errors import InputError, ModelError, one_of, reported_as
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, digest, numbers, versioned
from brinell.models.wrap import TorchClassifier
from brinell.untrusted import parse_json

# Status codes of temporary failures: too many requests, and errors of servers and gateways.
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
# The longest wait in seconds between two tries, whatever the service asks for.
LONGEST_WAIT = 120.0
# No batch of scores is larger.
LARGEST_RESPONSE = 1 << 26
NOBODY = "no service at this address"
START_IT = "Start the service, or correct host and port in url."

Array = Any
Encode = Callable[[Array], bytes]
Decode = Callable[[bytes], Any]


def encode_json(x: Array) -> bytes:
    """Return a batch as the bytes of the JSON object {"inputs": [...]}.

    >>> encode_json(np.array([[0.5, 1.0]], np.float32))
    b'{"inputs": [[0.5, 1.0]]}'
    """
    return json.dumps({"inputs": x.tolist()}).encode()


def decode_json(body: bytes) -> Any:
    """Return the rows in the bytes of a JSON object {"outputs": [...]}.

    >>> decode_json(b'{"outputs": [[0.25, 0.75]]}')
    [[0.25, 0.75]]
    """
    return parse_json(body, finite=False)["outputs"]


def _unreachable(error: Exception) -> bool:
    """Return whether nobody answers at the address: the connection is refused, or the host has no address."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(cause, ConnectionRefusedError | socket.gaierror)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Raise an error for redirects: urllib would send the headers, and keys in them, to any other host."""

    def redirect_request(self, *_: Any, **__: Any) -> None: ...


OPENER = urllib.request.build_opener(_NoRedirects)


def shown_address(url: str) -> str:
    """Return a URL without its scheme and without the parts that can hold keys: user, password, query, fragment.

    >>> shown_address("https://me:secret@example.org:8000/score?key=secret")
    'example.org:8000/score'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    return parts.netloc.rpartition("@")[2] + parts.path


def _checked(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without user and password, and the header that has them instead; refuse other addresses."""
    remedy = "Write e.g. https://host/score."
    with reported_as(InputError, ValueError, expected="a URL", remedy=remedy):
        parts = urlsplit(url)
    if not url.startswith(("http://", "https://")) or not parts.hostname:
        raise InputError(
            expected="a URL that begins with http:// or https://",
            got=shown_address(url) or "no host",
            remedy=remedy,
        )
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    encoded = base64.b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {encoded}"}


@dataclass
class Service:
    """An HTTP endpoint with its timeout, retries and rate limit. `requests` counts all requests, repeated ones too."""

    url: str
    headers: Mapping[str, str]
    timeout: float | int
    retries: int
    wait: float | int
    rate: float | int | None
    requests: int = 0
    _next: float = field(default=0.0, repr=False)

    def post(self, body: bytes) -> bytes:
        """Send a request and return the body of the response; repeat the request after temporary failures."""
        for attempt in range(self.retries + 1):
            self._keep_rate()
            self.requests += 1
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                with error:
                    reason, retry_after = f"status {error.code}", error.headers.get("Retry-After")
                    target = shown_address(error.headers.get("Location") or "")
                if 300 <= error.code < 400:
                    remedy = "Requests may hold keys, so they are sent nowhere else. Pass the new URL if you trust it."
                    raise self._error(f"{reason}, a redirect to {target or 'nowhere'}", remedy) from None
                if error.code not in TEMPORARY:
                    raise self._error(reason, "Check url, headers and the request body from encode.") from None
            except (OSError, HTTPException) as error:  # no connection, a broken connection, or a timeout
                reason, retry_after = f"{type(error).__name__}: {error}", None
                if attempt == self.retries and _unreachable(error):
                    raise self._error(f"{NOBODY} ({reason}), after {self._tries}", START_IT) from None
            if attempt < self.retries:
                time.sleep(self._pause(attempt, retry_after))
        raise self._error(f"{reason}, after {self._tries}", "Lower batch or rate, or raise timeout or retries.")

    @property
    def _tries(self) -> str:
        return f"{self.retries + 1} {'try' if self.retries == 0 else 'tries'}"

    def _send(self, body: bytes) -> bytes:
        request = urllib.request.Request(self.url, body, dict(self.headers), method="POST")
        with OPENER.open(request, timeout=self.timeout) as response:
            content: bytes = response.read(LARGEST_RESPONSE + 1)
        if response.length and len(content) <= LARGEST_RESPONSE:
            raise IncompleteRead(content)
        if len(content) > LARGEST_RESPONSE:
            raise self._error(f"more than {LARGEST_RESPONSE:,} bytes", "Lower batch, or check the service.")
        return content

    def _error(self, got: str, remedy: str) -> ModelError:
        return ModelError(expected=f"a response from {shown_address(self.url)}", got=got, remedy=remedy)

    def _pause(self, attempt: int, retry_after: str | None) -> float:
        """Return the seconds to wait before the next try: those in `retry_after`, or else `wait` · 2^attempt."""
        try:
            seconds = float(retry_after) if retry_after is not None else math.nan
        except ValueError:  # a date: the clocks may differ
            seconds = math.nan
        return min(seconds if seconds >= 0 else self.wait * 2.0**attempt, LONGEST_WAIT)

    def _keep_rate(self) -> None:
        if self.rate is None:
            return
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.rate


class HttpBridge(Bridge):
    """A bridge to an HTTP service that receives the distinct rows of an input, at most `batch` per request."""

    def __init__(
        self, service: Service, encode: Encode, decode: Decode, batch: int, outputs: str, classes: Any, mark: str
    ) -> None:
        super().__init__(mark)
        self.service, self.encode, self.decode, self.batch = service, encode, decode, batch
        self.outputs, self.classes = outputs, classes

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of x; only distinct rows are sent, so the copies that pad a block cost nothing."""
        points = numbers(x)
        _, first, place = np.unique(points.reshape(len(points), -1), axis=0, return_index=True, return_inverse=True)
        rows = points[first]
        responses = [self._query(rows[i : i + self.batch]) for i in range(0, len(rows), self.batch)]
        logits = np.concatenate([v.numpy() for v in responses])[place.reshape(-1)]
        return as_logits(logits, "logits", len(x)).to(x.device)

    def _query(self, rows: Array) -> Tensor:
        body = self.service.post(self.encode(rows))
        try:
            values = self.decode(body)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ModelError(
                expected="a response that decode can read",
                got=f"{type(error).__name__}: {error}; the response begins with {body[:60]!r}",
                remedy='The default reads JSON {"outputs": [...]}. For another format pass decode=….',
            ) from None
        return as_logits(values, self.outputs, len(rows), self.classes)


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
    """Make a black box from a scoring service that maps posted batches to logits, probabilities or labels.

    Method: `encode` makes the request body from a float32 array of at most `batch` rows; `decode` reads the rows of
    the response. The default is JSON, {"inputs": …} and {"outputs": …}. Equal rows are sent once. A request is repeated
    up to `retries` times if there is no response within `timeout` seconds or the status is 408, 425, 429 or a server
    error. Between tries Brinell waits as long as the service asks, or `wait`, 2·`wait`, 4·`wait` … seconds. Any other
    error is raised at once. `rate` limits the requests per second. Probabilities become log-probabilities, at least log
    1e-30; labels need `classes`. The fingerprint covers the address, `outputs` and `version`, but not the headers,
    which may hold keys. User and password in the URL are sent as a header and stored nowhere. Redirects are errors.
    Cost: the service evaluates one row per query of an attack and sample.
    """
    one_of("outputs", outputs, OUTPUTS)
    valid = batch >= 1 and timeout > 0 and retries >= 0 and wait >= 0 and (rate is None or rate > 0)
    if not valid:
        raise InputError(
            expected="batch of at least 1, timeout and rate above 0, retries and wait of at least 0",
            got=f"batch = {batch}, timeout = {timeout}, rate = {rate}, retries = {retries}, wait = {wait}",
            remedy="Leave these arguments out for the defaults.",
        )
    url, login = _checked(url)
    given = {"Content-Type": "application/json", **login, **(headers or {})}
    service = Service(url, given, timeout, retries, wait, rate)
    mark = digest((), "http", url, outputs, str(classes), versioned("a service", version))
    bridge = HttpBridge(service, encode, decode, batch, outputs, classes, mark)
    label = name if name is not None else shown_address(url)
    return classifier(bridge, name=label, differentiable=False, channels_last=channels_last, allow=allow)
