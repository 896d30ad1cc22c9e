"""Ed25519 against the test vectors of RFC 8032, section 7.1, against OpenSSL, and against forged signatures."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from brinell.dossier import PrivateKey, new_key, read_key
from brinell.dossier.check_dossier import ORDER, encode_point, fingerprint, verify
from brinell.errors import InputError, StorageError

# Private key, public key, message, signature: TEST 1, TEST 2 and TEST 3.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655"
        "141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00"
        "d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc02"
        "7beceea1ec40a",
    ),
]


@pytest.mark.parametrize("vector", VECTORS, ids=["1", "2", "3"])
def test_vectors_of_rfc_8032(vector: tuple[str, ...]) -> None:
    seed, public, message, signature = map(bytes.fromhex, vector)
    key = PrivateKey(seed)
    assert key.public == public
    assert key.sign(message) == signature
    assert verify(public, message, signature)
    assert not verify(public, message + b"x", signature)


def test_forged_signatures_are_refused() -> None:
    key = PrivateKey(bytes(range(32)))
    signature = key.sign(b"text")
    s = int.from_bytes(signature[32:], "little")
    same_modulo_order = signature[:32] + (s + ORDER).to_bytes(32, "little")
    assert verify(key.public, b"text", signature)
    assert not verify(key.public, b"text", same_modulo_order)
    assert not verify(key.public, b"text", signature + b"\0")
    assert not verify(PrivateKey(bytes(32)).public, b"text", signature)
    # The neutral element as a key: R = s * B is a "signature" of every message.
    assert not verify(encode_point((0, 1, 1, 0)), b"text", PrivateKey(bytes(32)).public + (0).to_bytes(32, "little"))
    with pytest.raises(ValueError, match="no point"):
        verify(b"\xff" * 32, b"text", signature)


def test_a_key_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == made
    with pytest.raises(InputError, match="exists"):
        new_key(path)
    with pytest.raises(StorageError):
        new_key(tmp_path / "missing" / "key.pem")
    assert made.seed.hex() not in repr(made) and repr(made.seed) not in f"{made!r}{made}"
    assert made.fingerprint == fingerprint(made.public) and len(made.fingerprint.split()) == 16


def test_a_kill_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key.pem"

    class Killed(BaseException):
        pass

    def killed(*args: object) -> None:
        raise Killed

    for name in ("fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed)
            with pytest.raises(Killed):
                new_key(path)
        assert not path.exists()
    assert new_key(path) == read_key(path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(InputError, match="Ed25519 private key"):
        read_key(tmp_path / "key.pem")
    with pytest.raises(InputError, match="FileNotFoundError"):
        read_key(tmp_path / "missing.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs OpenSSL")
def test_openssl_agrees(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key.pem")
    (tmp_path / "public.pem").write_text(key.public_pem)
    (tmp_path / "text").write_bytes(b"text")
    (tmp_path / "signature").write_bytes(key.sign(b"text"))
    call = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "public.pem", "-in", "text"]
    found = subprocess.run([*call, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, text=True)
    assert "Signature Verified Successfully" in found.stdout, found.stderr
    shown = subprocess.run(
        ["openssl", "pkey", "-in", "key.pem", "-pubout"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.stdout == key.public_pem
