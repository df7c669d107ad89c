"""Addresses of clusters are read once, and what is none is refused."""

from __future__ import annotations

import pytest

from collage.cluster.address import as_address
from collage.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host_port"),
    [
        ("auto", None),
        ("local", None),
        ("head:6379", ("head", 6379)),
        ("10.0.0.7:6379", ("10.0.0.7", 6379)),
        ("ray://head.example:10001", ("head.example", 10001)),
        ("[fe80::1]:6379", ("fe80::1", 6379)),
    ],
)
def test_addresses(text: str, host_port: tuple[str, int] | None) -> None:
    address = as_address(f" {text}\n")
    assert str(address) == text
    assert address.host_port == host_port
    assert as_address(address) is address


@pytest.mark.parametrize("text", ["", "head", "head:", "head:0", "head:70000", "http://head:80", "ray://head", "a b:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"no address of a cluster; give auto, local, HOST:PORT or ray://"):
        as_address(text)
