"""Where a node listens: the addresses, names and interfaces that settings accept."""

from __future__ import annotations

import socket
import warnings
from pathlib import Path
from typing import Any

import pytest

import hoplite
from commands import run
from hoplite import Node, _listening, addresses, settings


@pytest.fixture(autouse=True)
def _unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())


def test_an_interface_name_resolves_to_its_address() -> None:
    names = [name for _, name in socket.if_nameindex()]
    assert "lo" in names
    with Node(listen="lo:0") as node:
        assert node.address.startswith("127.0.0.1:")
    for name in set(names) - {"lo"}:
        ipv4 = _listening._ipv4_of(name)
        if ipv4 is not None:
            with Node(listen=f"{name}:0", token=hoplite.new_token()) as node:
                assert node.address.startswith(f"{ipv4}:")
    with pytest.raises(hoplite.InvalidArgument, match="nosuch0"):
        Node(listen="nosuch0:0", token=hoplite.new_token())


def test_an_interface_without_a_routable_address_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 address alone suffices; a link-local address does not."""
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe800000000000000000000000000001 01 40 20 80       lo\n20010db8000000000000000000000007 01 40 00 80       lo\n"
    )
    monkeypatch.setattr(_listening, "_ipv4_of", lambda _: None)
    monkeypatch.setattr(_listening, "IPV6_FILE", table)
    assert _listening.resolve_interface("listen", "lo:7420") == "[2001:db8::7]:7420"
    table.write_text(table.read_text().splitlines()[0])
    for file in (table, tmp_path / "none"):
        monkeypatch.setattr(_listening, "IPV6_FILE", file)
        with pytest.raises(hoplite.InvalidArgument, match=r"'lo:7420': interface lo has no address"):
            Node(listen="lo:7420")


def test_a_link_local_address_needs_its_interface() -> None:
    number = socket.if_nametoindex("lo")
    for scope in ("lo", str(number)):
        assert _listening.resolve_scope("join", f"[fe80::1%{scope}]:7420") == f"[fe80::1%{number}]:7420"
    with pytest.raises(hoplite.InvalidArgument, match="no interface nosuch0: name one of lo"):
        Node(listen="[fe80::1%nosuch0]:7420", token=hoplite.new_token())
    with pytest.raises(hoplite.InvalidArgument, match="nosuch0"):
        Node(join=["[fe80::1%nosuch0]:7420"])
    # Other hosts would not know which of their interfaces to use.
    with pytest.raises(hoplite.InvalidArgument, match="advertise"):
        Node(listen="[fe80::1%lo]:7420", token=hoplite.new_token())
    rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
    for digits, interface in [(row[0], row[5]) for row in rows if row[3] == "20"]:
        ip = ":".join(digits[at : at + 4] for at in range(0, 32, 4))
        with Node(listen=f"[{ip}%{interface}]:0", advertise="10.0.0.7", token=hoplite.new_token()) as node:
            assert node.address.startswith("10.0.0.7:")


def test_a_name_that_resolves_to_loopback_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the host's own name, which Debian resolves to 127.0.1.1."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Node(listen="localhost:0", token=hoplite.new_token()), Node(listen="127.0.0.1:0"):
            pass
    monkeypatch.setattr(_listening, "LOOPBACK_NAMES", ())
    with (
        pytest.warns(settings.SettingsWarning, match=r"localhost resolves to (127\.0\.0\.1|::1) .*name an interface"),
        Node(listen="localhost:0", token=hoplite.new_token()),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("::1:7496", '"[::1]:7496" or "[::1:7496]:7420"'),
        ("2001:db8::1", '"[2001:db8::1]:7420"'),
        ("2001:db8:0:0:0:0:0:1:7420", '"[2001:db8:0:0:0:0:0:1]:7420"'),
    ],
)
def test_an_ipv6_address_without_brackets_is_rejected(address: str, meant: str) -> None:
    with pytest.raises(hoplite.InvalidArgument) as caught:
        addresses.check_address("listen", address)
    assert str(caught.value).endswith(f"in brackets, such as {meant}")


def test_the_command_reports_an_unknown_variable() -> None:
    stderr = run("status", code=1, HOPLITE_CAPACTY="1GiB").stderr
    assert stderr.count("HOPLITE_CAPACTY is set, but there is no such setting (did you mean HOPLITE_CAPACITY?)") == 1


def test_the_variable_of_another_package_is_not_an_unknown_setting() -> None:
    assert "no such setting" not in run("status", code=1, HOPLITE_PLAN="plan.json").stderr


@pytest.mark.parametrize("name", ["spill_limit", "spill_persistent"])
def test_spill_settings_without_a_spill_folder_are_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "1GiB" if name == "spill_limit" else "true"
    options: dict[str, Any] = {name: text if name == "spill_limit" else True}
    with pytest.raises(hoplite.InvalidArgument, match=rf"^{name} \(argument\) has no effect .*spill"):
        Node(**options)
    option = [f"--{name.replace('_', '-')}", *(["1GiB"] if name == "spill_limit" else [])]
    assert name in run("node", "--listen", "127.0.0.1:0", *option, code=1).stderr
    monkeypatch.setenv(f"HOPLITE_{name.upper()}", text)
    with pytest.raises(hoplite.InvalidArgument, match=f"HOPLITE_{name.upper()}"):
        Node()


@pytest.mark.parametrize("seed", ["a..b:7420", "x" * 70 + ":7420", "nowhere.invalid:7420"])
def test_a_seed_without_an_address_is_named(seed: str) -> None:
    with pytest.raises(hoplite.JoinError, match="could not join the cluster"):
        Node(join=[seed])


def test_a_node_listens_on_the_interface_that_leads_to_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on loopback because the first seed is a name of this host, as Debian resolves it."""
    outside = "192.0.2.7"

    class Probe(socket.socket):
        def connect(self, address: Any) -> None:  # noqa: ANN401 - of any family
            self.target = address[0]

        def getsockname(self) -> Any:  # noqa: ANN401 - as socket has it
            return ("127.0.0.1" if self.target.startswith("127.") else outside, 1)

    monkeypatch.setattr(socket, "socket", Probe)
    assert _listening._towards(["127.0.1.1:7420", "192.0.2.8:7420"]) == f"{outside}:0"
    assert _listening._towards(["127.0.1.1:7420"]) == "127.0.0.1:0"
    assert _listening._towards([]) == "127.0.0.1:0"
