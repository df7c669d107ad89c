"""Signing a module file with a private key; see ``collage.module.signature``."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path

from collage.core.new_file import new_file
from collage.module.archive import SIGNATURE, new_entry
from collage.module.file import verified
from collage.module.signature import ALGORITHM, private_key, signed_bytes


def sign_file(path: Path, key: Path) -> None:
    """Sign the file with the private key. It replaces an older signature, and the file is replaced atomically.

    All entries are compared with their digests first. Raises CollageError for a file that is damaged, and for a key
    that cannot be read or is of another kind.
    """
    private = private_key(key)
    archive = verified(path)
    text = {
        "algorithm": ALGORITHM,
        "signature": base64.b64encode(private.sign(signed_bytes(archive))).decode(),
    }
    with new_file(path) as stream:
        stream.write(archive.unsigned())
        stream.seek(0)
        with zipfile.ZipFile(stream, "a") as changed:
            changed.writestr(new_entry(SIGNATURE), json.dumps(text))
