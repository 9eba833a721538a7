"""`hoplite node`: a node of its own, in the foreground."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from hoplite import Node, log, settings, sockets
from hoplite.errors import InvalidArgument
from hoplite.settings import FLAG, SETTINGS, Setting
from hoplite.tools.cli.notify import notify
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import fail_with, print_json, stepping

if TYPE_CHECKING:
    from collections.abc import Callable

# "hoplite" in telephone letters would be longer than a port may be; 7420 has no registered service.
DEFAULT_LISTEN = "127.0.0.1:7420"
DEFAULT_LOG = "info"

# Seconds between two looks whether the node has ended itself.
FAILURE_EVERY_S = 0.2

# What asks a node to leave.
ENDS = (signal.SIGTERM, signal.SIGINT)


class SettingType(click.ParamType):  # type: ignore[type-arg] # generic in the stubs of late releases only
    """Reads the option of a setting, as its variable would be read."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.name = setting.kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Judges the text of the option; what is wrong with it is a wrong use of the command."""
        if not isinstance(value, str):
            return value
        try:
            return self.setting.from_text(value)
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


def _refuse_secret(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Refuses a secret on the command line, where every user of the host can read it."""
    del context
    if value is not None:
        raise click.BadParameter(
            "every user of this host can see it there; use --token-file, or the variable HOPLITE_TOKEN", param=option
        )


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each setting of a node."""
    for setting in reversed([setting for setting in SETTINGS if setting.of_node]):
        default = {"listen": DEFAULT_LISTEN, "log_level": DEFAULT_LOG}.get(setting.name)
        said = f"{setting.variable}, or {default or setting.default_text or setting.default}"
        text = f"{setting.help.replace('`', '')}  [default: {said}]"
        if setting.is_secret:
            option = click.option(
                setting.option, callback=_refuse_secret, expose_value=False, hidden=True, metavar=setting.kind.metavar
            )
        elif setting.kind is FLAG:
            option = click.option(setting.option, setting.name, is_flag=True, help=text)
        else:
            option = click.option(
                setting.option,
                setting.name,
                type=SettingType(setting),
                multiple=setting.name == "join",
                metavar=setting.kind.metavar,
                help=text,
            )
        command = option(command)
    return command


# What the node is told as it is said here; where it listens has another default, and the others are the command's.
GIVEN = [
    setting.name
    for setting in SETTINGS
    if setting.of_node and not setting.is_secret and setting.name not in ("listen", "log_level", "leave_timeout")
]


@click.command()
@setting_options
@click.option(
    "--config", metavar="FILE", help=f"A TOML file of settings.  [default: {settings.CONFIG_VARIABLE}, or none]"
)
@json_option("Print the ready line as JSON.")
def node(config: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - each setting has its own type
    """Run a node in the foreground until SIGINT or SIGTERM.

    Prints one line when it is ready, and tells systemd. On the first signal it leaves: it hands over what only it
    holds, and exits with 1 if other nodes had no room for all of it. A second signal ends it at once. What no option
    says is taken from the environment, then from --config.

    \b
    On the first host:   hoplite token new --out hoplite.token  (copy it to the others)
                         hoplite node --token-file hoplite.token --listen 10.0.0.1:7420
    On every other:      hoplite node --token-file hoplite.token --listen 10.0.0.2:7420 --join 10.0.0.1:7420
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    # Each attached process takes two descriptors, and the usual soft limit is there for programs that use select.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Its memory has a secret, of its cluster or its user, and the objects of others.
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    # Blocked here and so in the node's threads, which start now: a signal that one of them takes would wake no other.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    # An option that was not given is empty or false; zero says something.
    given = {name: None if value is False else value for name, value in options.items()}
    given["join"] = [seed for seeds in options["join"] for seed in seeds] or None
    values = settings.load(config, **given)
    log.start(values["log_level"] or DEFAULT_LOG)
    # Said even where it is the default: the node of a host that was not at its place would not be found.
    socket: str = values["socket"] or str(sockets.default_socket())
    with stepping({InvalidArgument: "make the folder of the socket first, or another --socket"}):
        sockets.check_folder(socket)
    given["socket"] = socket
    running = Node(
        listen=values["listen"] if values.is_set("listen") else DEFAULT_LISTEN,
        config=config,
        **{name: given[name] for name in GIVEN},
    )
    # The node has it; a process that is started from here would have it too.
    for setting in SETTINGS:
        if setting.is_secret:
            os.environ.pop(setting.variable, None)
    try:
        _tell("READY=1", f"STATUS=serving {running.address} and {running.socket}")
        if as_json:
            print_json({"address": running.address, "socket": running.socket, "id": running.id})
        else:
            click.echo(f"ready: {running.address} unix:{running.socket}")
        _warn_of_embedded(running.socket)
        threading.Thread(target=_end_if_failed, args=(running,), daemon=True).start()
        # Not sigtimedwait: after a SIGSTOP that outlasts its timeout, CPython returns a signal that none has sent.
        signal.sigwait(ENDS)
        if running.failure is not None:
            fail_with(running.failure, "report what the log says, and start the node again")
        for number in ENDS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        _tell("STOPPING=1", "STATUS=leaving: handing over what only this node holds")
        click.echo("leaving: handing over what only this node holds", err=True)
    finally:
        is_kept = running.close(values["leave_timeout"])
    if not is_kept:
        fail_with(
            "objects are lost: no other node had room for them, or the time was over; the log names them",
            "free room elsewhere before a node leaves, a longer --leave-timeout, or put with replicas=2",
        )


def _warn_of_embedded(socket: str) -> None:
    """Names a process that has started a node of its own before this one was there."""
    beside = sockets.embedded_socket(socket)
    if sockets.is_served(beside):
        click.echo(
            f"warning: {sockets.server_of(beside)} has embedded a node, unix:{beside}, before this one was ready: it "
            "and what attached to it share no objects with this node; start them again, with HOPLITE_ADDRESS=local to "
            "have them wait for it",
            err=True,
        )


def _end_if_failed(running: Node) -> None:
    """Wakes the main thread by a signal when the node has ended itself."""
    while running.failure is None:
        time.sleep(FAILURE_EVERY_S)
    os.kill(os.getpid(), ENDS[0])


def _tell(*facts: str) -> None:
    problem = notify(*facts)
    if problem is not None:
        click.echo(f"warning: the service manager was not told: {problem}", err=True)
