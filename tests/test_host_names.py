"""Host names in files: a valid one is a single word for shells, options, host files and terminals."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from hoplite import topology
from hoplite.addresses import check_host, is_ip
from hoplite.errors import InvalidArgument
from host_names import BAD, GOOD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("name", GOOD)
def test_valid_names_and_addresses_pass_unchanged(name: str) -> None:
    assert check_host("it", name) == name
    assert shlex.quote(name) == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_an_invalid_name_is_rejected_with_a_printable_error(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^line 7 has .*, which is not the name or address of a host") as caught:
        check_host("line 7", name)
    assert str(caught.value).isprintable()


def test_the_zone_of_an_address_is_an_interface() -> None:
    assert is_ip("fe80::1%eth0")
    assert not any(map(is_ip, ("fe80::1%eth0;id", "fe80::1%a b", "fe80::1%\x1b", "fe80::1%")))


def topology_name(folder: Path, name: str) -> object:
    path = folder / "t.json"
    path.write_text(json.dumps({"format": topology.FORMAT, "hosts": [{"name": name}, {"name": "other"}]}))
    return topology.read(path)


def topology_address(folder: Path, name: str) -> object:
    path = folder / "t.json"
    path.write_text(json.dumps({"format": topology.FORMAT, "hosts": [{"name": "h0", "address": name}]}))
    return topology.read(path)


READERS: dict[str, Callable[[Path, str], object]] = {
    "topology": topology_name,
    "address": topology_address,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_rejects_invalid_names(tmp_path: Path, reader: str) -> None:
    for name in BAD:
        with pytest.raises(InvalidArgument, match=r"host|name|address") as caught:
            READERS[reader](tmp_path, name)
        assert str(caught.value).isprintable()
