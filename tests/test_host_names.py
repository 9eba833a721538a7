"""Names of hosts that files have: what passes is one word for shells, options, files of hosts and terminals."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest

from hoplite import topology
from hoplite.addresses import check_host, is_ip
from hoplite.errors import InvalidArgument
from hoplite.tools.bench import hosts as bench_hosts
from hoplite.tools.topology import launchers
from hoplite.tools.topology.hosts import Host, read_hosts
from hoplite.tools.topology.problem import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = [
    "h0",
    "gpu-17.example.com",
    "node_1",
    "10.0.0.1",
    "::1",
    "fe80::1%eth0.100",
    "me@gpu-17",
    "a.b@10.0.0.1",
    "1",
    "h.",
]

BAD = [
    "",
    "h0; touch x #",
    "h0 h1",
    "h0\nh1",
    "h0\n",
    "h0\x1b]0;title\x07",
    "-oProxyCommand=touch x",
    "me@-oProxyCommand=x",
    "-l@h0",
    "@h0",
    "a@b@c",
    "$(id)",
    "`id`",
    "h0'",
    "h0/x",
    "h0:22",
    "h0=1",
    "fe80::1%eth0;id",
    "fe80::1%$(id)",
    "fe80::1%eth0\nh1",
    "fe80::1%-x",
    "h\u043e0",
    "h\u202e0",
    "\uff48\uff10",
    "h" * 254,
]


@pytest.mark.parametrize("name", GOOD)
def test_names_and_addresses_pass_as_they_are(name: str) -> None:
    assert check_host("it", name) == name
    assert shlex.quote(name) == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_what_is_no_name_is_refused_in_printable_words(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^line 7 has .*, which is no name and no address of a host") as told:
        check_host("line 7", name)
    assert str(told.value).isprintable()


def test_a_zone_of_an_address_is_an_interface() -> None:
    assert is_ip("fe80::1%eth0")
    assert not any(map(is_ip, ("fe80::1%eth0;id", "fe80::1%a b", "fe80::1%\x1b", "fe80::1%")))


def of_topology(folder: Path, name: str) -> object:
    path = folder / "t.json"
    path.write_text(json.dumps({"format": topology.FORMAT, "hosts": [{"name": name}, {"name": "other"}]}))
    return topology.read(path)


def of_topologys_address(folder: Path, name: str) -> object:
    path = folder / "t.json"
    path.write_text(json.dumps({"format": topology.FORMAT, "hosts": [{"name": "h0", "address": name}]}))
    return topology.read(path)


def of_hosts(folder: Path, name: str) -> object:
    path = folder / "hosts"
    path.write_text(f"{name} 10.0.0.9\n")
    return read_hosts(path)


def of_bench(folder: Path, name: str) -> object:
    path = folder / "hosts"
    path.write_text(f"{name} 127.0.0.1\nother 127.0.0.2\n")
    return bench_hosts.of_file(path, rsh="sh")


READERS: dict[str, Callable[[Path, str], object]] = {
    "topology": of_topology,
    "address": of_topologys_address,
    "hosts": of_hosts,
    "bench": of_bench,
}
# More words of a line are refused for their number, and a line is ended by what ends lines.
ONE_WORD = [name for name in BAD if name and not re.search(r"[\s#]", name)]


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_refuses_them(tmp_path: Path, reader: str) -> None:
    bad = BAD if reader in ("topology", "address") else ONE_WORD
    for name in bad:
        with pytest.raises(InvalidArgument, match=r"host|name|address") as told:
            READERS[reader](tmp_path, name)
        assert str(told.value).isprintable()


@pytest.mark.parametrize("line", ["h0 -oProxyCommand=x", "h0 127.0.0.1 eth0,eth1", "h0 127.0.0.1 --mca"])
def test_other_words_of_a_line_of_the_bench_are_looked_at_too(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"{line}\nother 127.0.0.2\n")
    with pytest.raises(InvalidArgument, match="is no name"):
        bench_hosts.of_file(path, rsh="sh")


@pytest.mark.parametrize("form", ["torchrun", "env", "gloo", "nccl"])
def test_a_name_in_a_command_is_quoted_for_its_shell(form: str) -> None:
    """Also one that no reader lets through."""
    text = launchers.write(form, [Host("a; touch x #"), Host("b")], Wanted("ring")).text
    for line in text.splitlines():
        command = line.split(": ", 1)[1]
        assert ";" not in "".join(word for word in shlex.split(command, comments=True) if "a; touch x #" not in word)
        assert "touch" not in shlex.split(command, comments=True)
