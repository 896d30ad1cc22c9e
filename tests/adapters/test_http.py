"""Scoring services: a real server on this machine, which fails, stalls and limits as it is told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

import brinell
from brinell import InputError, ModelError
from brinell.models.adapters import http
from brinell.models.adapters.bridge import FLOOR
from brinell.testing import check_classifier, linear_world

WORLD = linear_world(3, shape=(1, 4, 4), n=6)


class Server(ThreadingHTTPServer):
    """Answers with the world's logits; `script` says what to do first: a status, "stall", "drop" or "nonsense"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list = []
        self.headers_sent: dict[str, str] = {}
        self.rows: list[int] = []
        self.seen: list[dict[str, str]] = []
        self.release = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(dict(self.headers))
        todo = self.server.script.pop(0) if self.server.script else 200
        if todo == "drop":
            self.close_connection = True
            return
        if todo == "stall":
            self.server.release.wait(10)
            self.close_connection = True
            return
        if todo not in (200, "nonsense"):
            self.send_response(todo)
            for key, value in self.server.headers_sent.items():
                self.send_header(key, value)
            self.end_headers()
            return
        x = np.array(json.loads(body)["inputs"], np.float32)
        self.server.rows.append(len(x))
        z = x.reshape(len(x), -1) @ WORLD.weight.numpy().T + WORLD.bias.numpy()
        answer = b"<html>" if todo == "nonsense" else json.dumps({"outputs": z.tolist()}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.release.set()
        made.shutdown()
        thread.join()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Waits are noted, not waited for; the clock goes on by them."""
    slept: list[float] = []
    monkeypatch.setattr(http.time, "sleep", slept.append)
    monkeypatch.setattr(http.time, "monotonic", lambda: sum(slept))
    return slept


def service(server: Server, **options) -> brinell.models.TorchClassifier:
    return brinell.models.from_http(server.url, version="1", **{"timeout": 5.0, **options})


def right(classifier) -> bool:
    return torch.allclose(classifier.forward(WORLD.x).logits, WORLD.classifier.forward(WORLD.x).logits, atol=1e-5)


def test_a_service_is_a_classifier(server):
    c = service(server, name="mine")
    check_classifier(c, WORLD.x)
    assert not c.differentiable and right(c) and c.name == "mine" and service(server).name.startswith("127.0.0.1")


def test_an_evaluation_of_a_service_is_that_of_the_model_behind(server):
    threat = brinell.Linf(float(WORLD.distance("Linf").median()) * 3)
    runs = [
        brinell.evaluate(c, (WORLD.x, WORLD.y), threat, brinell.attacks.Square(40), progress=False)
        for c in (service(server), WORLD.classifier)
    ]
    assert runs[0].survivors().tolist() == runs[1].survivors().tolist()
    assert 0 < len(runs[0].survivors()) < 6


def test_batches_are_cut_and_equal_rows_asked_once(server):
    c = service(server, batch=4)
    x = torch.cat([WORLD.x, WORLD.x[:1].expand(26, -1, -1, -1)])
    logits = c.forward(x).logits
    assert sorted(server.rows) == [2, 4] and torch.equal(logits[6:], logits[:1].expand(26, -1))


@pytest.mark.parametrize("trouble", [429, 503, 500, "drop"])
def test_what_may_pass_is_tried_again(server, pauses, trouble):
    server.script = [trouble, trouble]
    c = service(server, wait=0.5)
    assert right(c) and pauses == [0.5, 1.0] and c.module.service.requests == 3


def test_an_answer_that_does_not_come_is_not_waited_for(server, pauses):
    server.script = ["stall"]
    assert right(service(server, timeout=1.0)) and len(pauses) == 1


@pytest.mark.parametrize(
    ("asked", "waited"), [("7", 7.0), ("9999", http.LONGEST_WAIT), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.5)]
)
def test_the_service_says_when(server, pauses, asked, waited):
    server.script, server.headers_sent = [429], {"Retry-After": asked}
    assert right(service(server)) and pauses == [waited]


def test_patience_ends(server, pauses):
    server.script = [503] * 9
    with pytest.raises(ModelError, match="status 503, after 3 tries"):
        service(server, retries=2).forward(WORLD.x)
    assert len(server.script) == 6


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_will_not_pass_is_not_tried_again(server, pauses, status):
    server.script = [status]
    with pytest.raises(ModelError, match=f"status {status}"):
        service(server).forward(WORLD.x)
    assert pauses == [] and len(server.seen) == 1


def test_nobody_there(pauses):
    with pytest.raises(
        ModelError, match=r"no service at this address.*refused.*after 1 try.*Start the service"
    ) as error:
        brinell.models.from_http("http://127.0.0.1:9/", version="1", retries=0, timeout=1.0).forward(WORLD.x)
    assert "127.0.0.1:9/" in str(error.value) and "Lower" not in str(error.value)


def test_a_rate_is_kept(server, pauses):
    """Six requests at four per second: five waits of a quarter of a second."""
    assert right(service(server, batch=1, rate=4.0))
    assert pauses == [0.25] * 5


def test_nonsense_is_not_an_answer(server):
    server.script = ["nonsense"]
    with pytest.raises(ModelError, match="that decode can read"):
        service(server).forward(WORLD.x)


def test_bodies_and_headers_of_ones_own(server):
    def probabilities(body: bytes):
        z = np.exp(np.array(json.loads(body)["outputs"]))
        return z / z.sum(1, keepdims=True)

    c = service(server, decode=probabilities, outputs="probabilities", headers={"X-Key": "secret"})
    wanted = WORLD.classifier.forward(WORLD.x).logits.log_softmax(1).clamp(min=float(np.log(FLOOR)))
    assert torch.allclose(c.forward(WORLD.x).logits, wanted, atol=1e-4)
    assert server.seen[0]["X-Key"] == "secret" and c.fingerprint == service(server, outputs="probabilities").fingerprint
    labels = service(server, decode=lambda b: np.argmax(json.loads(b)["outputs"], 1), outputs="labels", classes=3)
    assert (labels.forward(WORLD.x).logits.argmax(1) == WORLD.y).all()


def test_fingerprints(server):
    same, other = service(server), brinell.models.from_http(server.url, version="2")
    assert same.fingerprint == service(server).fingerprint != other.fingerprint


@pytest.mark.parametrize(
    "options", [{"version": ""}, {"url": "ftp://x"}, {"batch": 0}, {"timeout": 0}, {"rate": 0}, {"retries": -1}]
)
def test_impossible_options(options):
    given = {"url": "http://127.0.0.1/", "version": "1", **options}
    with pytest.raises(InputError):
        brinell.models.from_http(given.pop("url"), **given)
