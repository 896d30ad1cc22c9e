"""Ed25519 keys in files, and signatures (RFC 8032), without other packages.

Method: the arithmetic of `check_dossier`, with Python's integers. It does not take constant time: sign on a machine
where nobody else can measure how long it takes. The files are those of OpenSSL: PKCS #8 in PEM, without a password.
"""

import base64
import binascii
import hashlib
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from brinell.dossier.check_dossier import BASE, ORDER, SPKI, encode_point, fingerprint, multiply
from brinell.errors import InputError
from brinell.storage import remove_abandoned, sync_folder, temporary_path, writing
from brinell.untrusted import read_plain

# The DER bytes before a private key of 32 bytes.
PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
BEGIN, END = "-----BEGIN {} KEY-----", "-----END {} KEY-----"
MAKE = "Make a key with brinell dossier --new-key FILE, or with openssl genpkey -algorithm ed25519."
SIZE = 32


class PrivateKey(NamedTuple):
    """A private key: 32 secret bytes."""

    seed: bytes

    def __repr__(self) -> str:
        return f"PrivateKey({self.fingerprint})"  # no secrets in logs

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes.

        >>> PrivateKey(bytes(32)).public.hex()[:16]
        '3b6a27bcceb6a42d'
        """
        return encode_point(multiply(self._numbers[0], BASE))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public key, to be compared by another channel."""
        return fingerprint(self.public)

    @property
    def public_pem(self) -> str:
        """The public key as a PEM file."""
        return _pem("PUBLIC", SPKI + self.public)

    @property
    def _numbers(self) -> tuple[int, bytes]:
        digest = hashlib.sha512(self.seed).digest()
        number = int.from_bytes(digest[:SIZE], "little")
        return number & ((1 << 254) - 8) | 1 << 254, digest[SIZE:]

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes; it is the same every time."""
        secret, prefix = self._numbers
        nonce = _number(prefix, message)
        point = encode_point(multiply(nonce, BASE))
        s = (nonce + _number(point, self.public, message) * secret) % ORDER
        return point + s.to_bytes(SIZE, "little")


def new_key(path: Path) -> PrivateKey:
    """Make a private key, write it to a new file that only its owner can read, and return it."""
    key = PrivateKey(secrets.token_bytes(SIZE))
    if path.exists():
        remedy = "Name another file. A lost key cannot be made again."
        raise InputError(expected="a new file for the private key", got=f"{path}, which exists", remedy=remedy)
    with writing(path):
        remove_abandoned(path)
        temporary = temporary_path(path)
        # The mode holds from the first byte, and a link never replaces a key that is there.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(_pem("PRIVATE", PKCS8 + key.seed))
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    return key


def read_key(path: Path) -> PrivateKey:
    """Return the private key in a PEM file; raise an InputError if it holds no Ed25519 key without a password."""
    try:
        text = read_plain(path).decode("ascii")
        body = text.partition(BEGIN.format("PRIVATE"))[2].partition(END.format("PRIVATE"))[0]
        data = base64.b64decode("".join(body.split()), validate=True)
    except (OSError, ValueError, binascii.Error) as error:
        raise _no_key(path, f"{type(error).__name__}: {error}") from error
    if len(data) != len(PKCS8) + SIZE or not data.startswith(PKCS8):
        raise _no_key(path, "another content")
    return PrivateKey(data[len(PKCS8) :])


def _number(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % ORDER


def _pem(kind: str, data: bytes) -> str:
    return f"{BEGIN.format(kind)}\n{base64.b64encode(data).decode()}\n{END.format(kind)}\n"


def _no_key(path: Path, got: str) -> InputError:
    return InputError(expected=f"an Ed25519 private key (PEM, no password) in {path}", got=got, remedy=MAKE)
