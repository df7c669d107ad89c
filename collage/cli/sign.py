"""The commands ``collage sign`` and ``collage verify``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import print_json, say
from collage.cli.files import check_writable
from collage.cli.options import FILE_ARGUMENT, JSON_OPTION


@click.command()
@FILE_ARGUMENT
@click.option(
    "--key",
    metavar="KEY.pem",
    required=True,
    type=click.Path(path_type=Path),
    help="Private Ed25519 key; `openssl genpkey -algorithm ed25519 -out KEY.pem` makes one.",
)
def sign(file: Path, key: Path) -> None:
    """Sign a module file, so that others can tell that it is yours.

    The signature goes into the file. Others give your public key (`openssl pkey -in KEY.pem -pubout -out PUBLIC.pem`)
    to `collage verify --key`, `collage run --trusted-key` or `collage.load(..., trusted_key=...)`.

    \b
    Examples:
      collage sign model.collage --key key.pem
    """
    from collage.module.signing import sign_file

    check_writable(file)
    sign_file(file, key)
    say(f"signed {file}")


@click.command()
@FILE_ARGUMENT
@click.option(
    "--key",
    metavar="PUBLIC.pem",
    type=click.Path(path_type=Path),
    help="Public key of the signer that you trust. Without it, only damage is found.",
)
@JSON_OPTION
def verify(file: Path, key: Path | None, as_json: bool) -> None:
    """Check that a module file is as it was written, and that its signer is trusted. Nothing in it is loaded.

    \b
    Examples:
      collage verify model.collage
      collage verify model.collage --key public.pem
    """
    from collage.errors import ModuleFileError
    from collage.module.file import verified

    try:
        archive = verified(file, key)
    except ModuleFileError as error:
        if as_json:
            print_json({"valid": False, "reason": str(error)})
        raise
    signed = archive.signature is not None
    if as_json:
        print_json({"valid": True, "digest": archive.digest, "signed": signed, "trusted": key is not None})
        return
    about = "signed; --key PUBLIC.pem checks by whom" if signed else "not signed"
    if key is not None:
        about = f"signed by {key}"
    say(f"{file} is as it was written ({archive.digest[:16]}), {about}")
