"""Settings: argument, environment, file and default, in this order, and the errors for invalid settings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite import Node, settings, sizes
from hoplite.settings import SETTINGS, SettingsWarning, load
from hoplite.tools.cli.page import page
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]

TOKEN = hoplite.new_token()

# A value of each setting that is not its default: as a variable, in TOML, and parsed.
EXAMPLES: dict[str, tuple[str, str, Any]] = {
    "listen": ("[::1]:7421", '"[::1]:7421"', "[::1]:7421"),
    "advertise": ("10.0.0.1", '"10.0.0.1"', "10.0.0.1"),
    "rack": ("row 7", '"row 7"', "row 7"),
    "topology": ("/etc/t.json", '"/etc/t.json"', "/etc/t.json"),
    "topology_host": ("h0", '"h0"', "h0"),
    "join": ("a:1, [fe80::1]:2", '["a:1", "[fe80::1]:2"]', ["a:1", "[fe80::1]:2"]),
    "cluster": ("mine", '"mine"', "mine"),
    "token": (TOKEN, f'"{TOKEN}"', TOKEN),
    "token_file": ("/run/x.token", '"/run/x.token"', "/run/x.token"),
    "certificate": ("/run/x.crt", '"/run/x.crt"', "/run/x.crt"),
    "key": ("/run/x.key", '"/run/x.key"', "/run/x.key"),
    "ca": ("/run/ca.crt", '"/run/ca.crt"', "/run/ca.crt"),
    "crl": ("/run/crl.pem", '"/run/crl.pem"', "/run/crl.pem"),
    "no_auth": ("yes", "true", True),
    "digest": ("on", "true", True),
    "no_encryption": ("yes", "true", True),
    "require_capability": ("yes", "true", True),
    "capability": ("/run/x.capability", '"/run/x.capability"', "/run/x.capability"),
    "capacity": ("1 GiB", "1073741824", 1 << 30),
    "spill": ("/var/spill", '"/var/spill"', "/var/spill"),
    "spill_limit": ("2TB", '"2TB"', 2 * 10**12),
    "spill_persistent": ("yes", "true", True),
    "socket": ("/run/x.sock", '"/run/x.sock"', "/run/x.sock"),
    "detection_timeout": ("1.5", "1.5", 1.5),
    "leave_timeout": ("2.5", "2.5", 2.5),
    "http": ("7480", "7480", "127.0.0.1:7480"),
    "http_key_file": ("/run/x.key", '"/run/x.key"', "/run/x.key"),
    "log_level": ("DEBUG", '"debug"', "debug"),
    "log_format": ("JSON", '"json"', "json"),
    "address": ("a:1,b:2", '"a:1,b:2"', "a:1,b:2"),
    "allow_pickle": ("0", "false", False),
    "job": ("run-7", '"run-7"', "run-7"),
    "timeout": ("30", "30", 30.0),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(settings, "_warned", set())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str, mode: int = 0o600) -> Path:
        file = tmp_path / "hoplite.toml"
        file.write_text(content)
        file.chmod(mode)
        return file

    return write


def test_the_page_matches_the_table() -> None:
    assert (Path(__file__).parent.parent / "docs" / "settings.md").read_text() == page()


def test_every_setting_has_an_example() -> None:
    assert set(EXAMPLES) == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_default_then_file_then_environment_then_argument(
    setting: settings.Setting, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source takes precedence over the previous ones."""
    name = setting.name
    text, toml, value = EXAMPLES[name]
    assert load(**{name: None})[name] == setting.default
    assert load(**{name: None}).origin(name) == "default"

    file = write(f"{name} = {toml}")
    assert load(file, **{name: None})[name] == value
    assert load(file, **{name: None}).origin(name) == f"{file}: {name}"
    monkeypatch.setenv("HOPLITE_CONFIG", str(file))
    assert load(**{name: None})[name] == value

    monkeypatch.delenv("HOPLITE_CONFIG")
    monkeypatch.setenv(setting.variable, text)
    assert load(**{name: None})[name] == value
    assert load(**{name: None}).origin(name) == setting.variable

    # An explicit argument takes precedence over all others, even if it equals the default.
    explicit = setting.default if setting.default not in (None, ()) else value
    assert load(file, **{name: explicit})[name] == explicit
    assert load(file, **{name: explicit}).given() == [name]


def test_the_environment_takes_precedence_over_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write('cluster = "of-file"\ncapacity = "1GiB"')
    monkeypatch.setenv("HOPLITE_CLUSTER", "of-environment")
    values = load(file, cluster=None, capacity=None)
    assert (values["cluster"], values["capacity"]) == ("of-environment", 1 << 30)


def test_an_empty_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.setenv(setting.variable, "")
    monkeypatch.setenv("HOPLITE_CONFIG", "")
    values = load(**{setting.name: None for setting in SETTINGS})
    assert not [setting.name for setting in SETTINGS if values.is_set(setting.name)]


def test_no_default_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "hoplite", tmp_path / ".config" / "hoplite"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hoplite.toml").write_text('cluster = "hidden"')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert load(cluster=None)["cluster"] == "default"


GARBAGE = {
    "HOPLITE_CAPACITY": "lots",
    "HOPLITE_NO_AUTH": "perhaps",
    "HOPLITE_LEAVE_TIMEOUT": "soon",
    "HOPLITE_LISTEN": "7420",
    "HOPLITE_JOIN": "10.0.0.1:7420,nonsense",
    "HOPLITE_ADVERTISE": "host:port",
    "HOPLITE_LOG_LEVEL": "loud",
    "HOPLITE_ADDRESS": "unix:",
    "HOPLITE_ALLOW_PICKLE": "2",
    "HOPLITE_TOKEN": "choose-your-own",
}


@pytest.mark.parametrize(("variable", "text"), GARBAGE.items())
def test_garbage_in_a_variable_is_named(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    name = variable.removeprefix("HOPLITE_").lower()
    with pytest.raises(hoplite.InvalidArgument, match=rf"^{variable}: {name} "):
        load(**{name: None})


@pytest.mark.parametrize(
    ("content", "problem"),
    {
        "capasity = '1GiB'": r"unknown setting capasity \(did you mean capacity\?\): use listen, ",
        "xyz = 1": r"unknown setting xyz: use listen, ",
        "[node]\nlisten = 'a:1'": r"\[node\] is a section",
        "listen = 7420": r'listen is 7420: write "host:port"',
        "no_auth = 'true'": "no_auth is 'true': write true or false",
        "no_auth = 1": "no_auth is 1: write true or false",
        "capacity = true": "capacity is True: write",
        "capacity = 'lots'": "capacity 'lots' is not a size",
        "capacity = 1.5": "capacity is 1.5: write",
        "join = 'a'": "join 'a' is not an address",
        "join = 'http://a:1'": "join 'http://a:1' is not an address: write only \"host:port\"",
        "join = [7]": "join must be a string, not an int",
        "leave_timeout = '5'": "leave_timeout is '5': write a number of seconds",
        "leave_timeout = -1": "leave_timeout is -1: set a number of seconds from 0 up",
        "leave_timeout = nan": "leave_timeout is nan",
        "detection_timeout = 0.1": "detection_timeout 0.1 is too short: .* Set at least 0.5",
        "detection_timeout = -1": "detection_timeout is -1: set a number of seconds from 0 up",
        "cluster = ''": "cluster is empty",
        "rack = ''": "rack is empty",
        f"rack = '{'x' * 64}'": "rack 'x+' has 64 bytes, which is too long: use at most 63",
        "token = 'choose-your-own'": r"token was not created by hoplite, .* hoplite token new",
        "token = 314159": "token is an int: write the output of `hoplite token new`",
        "token = [": "is not valid TOML: ",
        "\udcff": "is not valid TOML: ",
    }.items(),
)
def test_errors_of_a_file_are_named(content: str, problem: str, tmp_path: Path) -> None:
    """The whole file is validated, including keys that the caller does not load."""
    file = tmp_path / "my.toml"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(hoplite.InvalidArgument, match=rf"my\.toml:? {problem}"):
        load(file, advertise=None)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"can't read the settings in .*none\.toml: No such file"):
        load(tmp_path / "none.toml", listen=None)
    with pytest.raises(hoplite.InvalidArgument, match=r"can't read the settings in .*: Is a directory"):
        load(tmp_path, listen=None)
    monkeypatch.setenv("HOPLITE_CONFIG", str(tmp_path / "none.toml"))
    for call in (Node, hoplite.init):
        with pytest.raises(hoplite.InvalidArgument, match=r"none\.toml"):
            call()


def test_a_file_that_every_user_can_write_is_rejected(write: Callable[[str, int], Path]) -> None:
    """A user that can write the file can make this one join another cluster, or accept pickles."""
    file = write("capacity = '64MiB'", 0o666)
    with pytest.raises(hoplite.InvalidArgument, match=rf"every user can write {file}: run chmod o-w {file}"):
        load(file, capacity=None)
    file.chmod(0o664)
    assert load(file, capacity=None)["capacity"] == 64 << 20


def test_a_file_that_is_nested_too_deeply_is_rejected(write: Write) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="is not valid TOML"):
        load(write("capacity = " + "[" * 200_000), capacity=None)


def test_an_unknown_variable_causes_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_CAPCITY", "1GiB")
    with pytest.warns(SettingsWarning, match=r"HOPLITE_CAPCITY .*\(did you mean HOPLITE_CAPACITY\?\)"):
        load(capacity=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(capacity=None)


def test_a_token_that_others_can_read_is_an_error(write: Callable[[str, int], Path]) -> None:
    for mode in (0o604, 0o620, 0o602):
        file = write(f'token = "{TOKEN}"', mode)
        with pytest.raises(hoplite.InvalidArgument, match=rf"other users can read or write it: run chmod 600 {file}"):
            load(file, token=None)
    load(write(f'token = "{TOKEN}"', 0o600), token=None)
    load(write('cluster = "mine"', 0o644), token=None)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("::1", r"as \"\[::1\]:7420\""),
        ("fe80::1:7420", "brackets"),
        ("[]:7420", "not an address"),
        ("[::1]", "brackets"),
        ("10.0.0.1", "not an address"),
        ("10.0.0.1:", "not an address"),
        ("10.0.0.1:70000", "not an address"),
        ("10.0.0.1:٣", "not an address"),
        ("", "empty"),
    ],
)
def test_an_invalid_address_is_rejected(address: str, problem: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=problem):
        load(listen=address)


def test_arguments_of_the_wrong_type_are_rejected() -> None:
    for name, value in (("join", 7), ("no_auth", "yes"), ("token", b"x"), ("log_level", 3), ("leave_timeout", "5")):
        with pytest.raises(hoplite.InvalidArgument, match=name):
            load(**{name: value})


def test_a_node_announces_its_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_RACK", "row 7")
    with (
        Node(listen="127.0.0.1:0") as one,
        Node(join=[one.address], rack="zone b") as other,
        Node(join=[one.address], rack=None) as third,
    ):
        racks = {one.id: "row 7", other.id: "zone b", third.id: "row 7"}
        with other.client() as client:
            eventually(lambda: len(client.status()["members"]) == 3)
            assert {member["id"]: member["rack"] for member in client.status()["members"]} == racks
            assert client.status()["rack"] == "zone b"
    with pytest.raises(hoplite.InvalidArgument, match="rack is empty"):
        Node(rack="")
    monkeypatch.delenv("HOPLITE_RACK")
    with Node() as alone, alone.client() as client:
        assert client.status()["rack"] is None


def test_a_node_takes_its_settings_from_a_file(write: Write, tmp_path: Path) -> None:
    file = write(f'capacity = "64MiB"\ncluster = "mine"\nsocket = "{tmp_path}/own.sock"')
    with Node(config=file) as node, node.client() as client:
        assert node.socket == f"{tmp_path}/own.sock"
        assert client.status()["cluster"] == "mine"
        assert client.status()["store"]["capacity"] == 64 << 20
    with Node(config=file, capacity="32MiB", join=()) as node, node.client() as client:
        assert client.status()["store"]["capacity"] == 32 << 20


def test_dev_null_is_a_file_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_CONFIG", "/dev/null")
    assert settings.load() is not None


@pytest.mark.parametrize(
    ("text", "size"), [("10G", 10 << 30), ("3 K", 3 << 10), ("1.5M", 3 << 19), ("2T", 2 << 40), ("10GB", 10**10)]
)
def test_a_prefix_alone_is_binary(text: str, size: int) -> None:
    assert sizes.check_size("size", text) == size


def test_a_capacity_that_no_process_can_map_is_rejected() -> None:
    assert sizes.check_capacity("128TiB") == 128 << 40
    with pytest.raises(hoplite.InvalidArgument, match=r"set at most 140737488355328 \(128 TiB\)"):
        sizes.check_capacity("999999TiB")
