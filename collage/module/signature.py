"""Signatures of module files: Ed25519, by the package ``cryptography``, which the extra ``signing`` brings.

A module file holds machine code. A signature says whose it is, and loading with the public key of its owner runs no
other file. The digest of the manifest is signed; the manifest names every other entry by its own digest. Keys are PEM
files: ``openssl genpkey -algorithm ed25519 -out key.pem`` makes a private one, and
``openssl pkey -in key.pem -pubout -out public.pem`` makes its public one.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from collage.core.typed import parse_object, typed
from collage.errors import CollageError, ModuleFileError, UsageError, to_paste
from collage.module.archive import MappedArchive

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "ed25519"
_PURPOSE = b"collage module file, sha256 of its manifest: "
"""A text before the signed digest, so that a signature of anything else is no signature of a module."""


def check_signature(path: Path, archive: MappedArchive, key: Path) -> None:
    """Raise ModuleFileError unless the file is signed by the owner of the public key, CollageError for a wrong key."""
    public = _public(key)
    if archive.signature is None:
        raise ModuleFileError(
            f"{path} is not signed. Get a signed one from its maker, or, if that is you, run "
            f"{to_paste('sign', path, '--key', 'KEY.pem')}."
        )
    from cryptography.exceptions import InvalidSignature

    try:
        text = parse_object(archive.signature)
        if text.get("algorithm") != ALGORITHM:
            raise ValueError("an unknown algorithm")
        public.verify(
            base64.b64decode(typed(str, text.get("signature")), validate=True), signed_bytes(archive)
        )
    except (InvalidSignature, ValueError) as error:
        raise ModuleFileError(
            f"{path} is not signed by {key}: it was changed, or somebody else has signed it. Do not load it; get it "
            "again from the owner of the key."
        ) from error


def signed_bytes(archive: MappedArchive) -> bytes:
    """The bytes that are signed: the digest of the manifest, with the purpose before it."""
    return _PURPOSE + archive.digest.encode()


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key of a PEM file. Raises CollageError, which says what is wrong with it."""
    serialization, ed25519 = _library()
    try:
        found = serialization.load_pem_private_key(_read(path), password=None)
    except TypeError as error:
        raise CollageError(
            f"{path} is encrypted: `openssl pkey -in {path} -out KEY.pem` decrypts it."
        ) from error
    except ValueError as error:
        raise _no_key(path, "private") from error
    if not isinstance(found, ed25519.Ed25519PrivateKey):
        raise _no_key(path, "private")
    return cast("Ed25519PrivateKey", found)


def _public(path: Path) -> Ed25519PublicKey:
    serialization, ed25519 = _library()
    try:
        found = serialization.load_pem_public_key(_read(path))
    except ValueError as error:
        raise _no_key(path, "public") from error
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise _no_key(path, "public")
    return cast("Ed25519PublicKey", found)


def _no_key(path: Path, kind: str) -> CollageError:
    how = (
        "genpkey -algorithm ed25519 -out KEY.pem"
        if kind == "private"
        else "pkey -in KEY.pem -pubout -out PUBLIC.pem"
    )
    return UsageError(f"{path} is no {kind} Ed25519 key in PEM format. Make one with `openssl {how}`.")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CollageError(f"cannot read the key {path}: {error.strerror}.") from error


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise CollageError(
            "signatures need the package cryptography: pip install '.[signing]' in Collage's checkout."
        ) from error
    return serialization, ed25519
