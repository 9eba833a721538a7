"""`hoplite node`: a node in the foreground."""

from __future__ import annotations

import contextlib
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
from hoplite.tools.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

# 7420 has no registered service.
DEFAULT_LISTEN = "127.0.0.1:7420"
DEFAULT_LOG = "info"

# Interval at which the main thread checks for a failure of the node.
FAILURE_EVERY_S = 0.2

# Signals on which the node leaves.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SettingType(click.ParamType):  # type: ignore[type-arg] # generic in the stubs of late releases only
    """Parses the option of a setting, as its environment variable."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.name = setting.kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Parses the text of the option; an invalid text is a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self.setting.from_text(value)
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


def _refuse_secret(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Rejects a secret on the command line, because every user of the host can read it there."""
    del context
    if value is not None:
        raise click.BadParameter(
            "every user of this host can read the command line: use --token-file, or the variable HOPLITE_TOKEN",
            param=option,
        )


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting of a node to a command."""
    for setting in reversed([setting for setting in SETTINGS if setting.of_node]):
        default = {"listen": DEFAULT_LISTEN, "log_level": DEFAULT_LOG}.get(setting.name)
        fallback = f"{setting.variable}, or {default or setting.default_text or setting.default}"
        text = f"{setting.help}  [default: {fallback}]".replace("`", "")
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


# Settings for which the command has its own default or use. The others are passed on to the node.
OWN = ("listen", "log_level", "log_format", "leave_timeout")
GIVEN = [setting.name for setting in SETTINGS if setting.of_node and not setting.is_secret and setting.name not in OWN]


@click.command()
@setting_options
@click.option(
    "--config", metavar="FILE", help=f"TOML file of settings.  [default: {settings.CONFIG_VARIABLE}, or none]"
)
@json_option("Print the ready line as JSON.")
def node(config: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - each setting has its own type
    """Run a node in the foreground until SIGINT, SIGTERM or SIGHUP.

    When the node is ready, it prints one line and notifies systemd. On the first signal it leaves the cluster: it
    hands over the objects that only it holds. If any of them are lost, the exit code is 1. A second signal ends the
    node immediately.

    A setting that is not given as an option is read from its environment variable, then from the file in --config.

    \b
    On the first host:    hoplite token new --out hoplite.token  (copy it to the other hosts)
                          hoplite node --token-file hoplite.token --listen 10.0.0.1:7420
    On every other host:  hoplite node --token-file hoplite.token --listen 10.0.0.2:7420 --join 10.0.0.1:7420
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    # Each attached process uses two descriptors. The soft limit only protects programs that use select.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A core dump would contain the secret and objects of other users.
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    # Block the signals in this thread and so in the node's threads, so that only `sigwait` receives them.
    # Under nohup, SIGHUP is ignored, but `sigwait` would receive it.
    ends = [number for number in ENDS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    # Without the option, its value is `None` or false. Zero was given by the user.
    given = {name: None if value is False else value for name, value in options.items()}
    given["join"] = [seed for seeds in options["join"] for seed in seeds] or None
    values = settings.load(config, **given)
    log.start(values["log_level"] or DEFAULT_LOG, values["log_format"])
    # Always explicit: the host's node must be where clients look, or fail.
    socket: str = values["socket"] or str(sockets.default_socket())
    with stepping({InvalidArgument: "create the directory of the socket, or choose another --socket"}):
        sockets.check_folder(socket)
    given["socket"] = socket
    running = Node(
        listen=values["listen"] if values.is_set("listen") or values["join"] else DEFAULT_LISTEN,
        config=config,
        **{name: given[name] for name in GIVEN},
    )
    # The node has the secret. Child processes must not inherit it.
    for setting in SETTINGS:
        if setting.is_secret:
            os.environ.pop(setting.variable, None)
    try:
        _notify("READY=1", f"STATUS=serving {running.address} and {running.socket}")
        if as_json:
            facts = {"address": running.address, "socket": running.socket, "id": running.id}
            print_json(facts if running.http is None else {**facts, "http": running.http})
        else:
            page = "" if running.http is None else f" {running.http}"
            click.echo(f"ready: {running.address} unix:{running.socket}{page}")
        _warn_of_embedded(running.socket)
        threading.Thread(target=_end_if_failed, args=(running,), daemon=True).start()
        # Not sigtimedwait: after a SIGSTOP longer than its timeout, CPython returns a signal that was never sent.
        signal.sigwait(ends)
        if running.failure is not None:
            fail_with(running.failure, "restart the node; if it fails again, report its log")
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        # At SIGHUP, the terminal may be closed.
        with contextlib.suppress(OSError):
            _notify("STOPPING=1", "STATUS=leaving: handing over objects that only this node holds")
            click.echo("leaving: handing over objects that only this node holds", err=True)
    finally:
        with Progress("handing over objects; press Ctrl-C to end without it"):
            is_kept = running.close(values["leave_timeout"])
    if not is_kept:
        fail_with(
            "objects are lost: no other node had capacity for them, or leave_timeout passed; the log names them",
            "free memory on other nodes before a node leaves, set a longer --leave-timeout, or put with replicas=2",
        )


def _warn_of_embedded(socket: str) -> None:
    """Warns of a process that embedded a node before this one started."""
    embedded = sockets.embedded_socket(socket)
    if sockets.is_served(embedded):
        click.echo(
            f"warning: {sockets.server_of(embedded)} started an embedded node, unix:{embedded}, before this node was "
            "ready. Clients of the two nodes share no objects: restart the clients of the embedded node with "
            "HOPLITE_ADDRESS=local",
            err=True,
        )


def _end_if_failed(running: Node) -> None:
    """Wakes the main thread by a signal if the node fails."""
    while running.failure is None:
        time.sleep(FAILURE_EVERY_S)
    os.kill(os.getpid(), ENDS[0])


def _notify(*facts: str) -> None:
    problem = notify(*facts)
    if problem is not None:
        click.echo(f"warning: the service manager was not notified: {problem}", err=True)
