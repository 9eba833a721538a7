"""`hoplite node`: a node of its own, in the foreground."""

from __future__ import annotations

import signal

import click

from hoplite.cli.output import print_json
from hoplite.node import TOKEN_VARIABLE, Node

# "hoplite" in telephone letters would be longer than a port may be; 7420 has no registered service.
DEFAULT_LISTEN = "127.0.0.1:7420"

# What asks a node to leave.
ENDS = (signal.SIGTERM, signal.SIGINT)


@click.command()
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where other nodes reach this one; port 0 takes any free one.",
)
@click.option(
    "--join",
    multiple=True,
    metavar="HOST:PORT",
    help="A node of the cluster to join; may be given several times.",
)
@click.option(
    "--capacity",
    metavar="SIZE",
    help="Most memory the store may take, such as 8GiB.  [default: 30 % of this host's]",
)
@click.option(
    "--cluster",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Only nodes of one cluster name join.",
)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    metavar="TEXT",
    help=f"The cluster's secret; better given in the environment's {TOKEN_VARIABLE}.",
)
@click.option("--insecure", is_flag=True, help="Allow to listen off loopback with no token.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="The address others should use, where it is not that of --listen.",
)
@click.option(
    "--socket",
    metavar="PATH",
    help="Unix socket for this host's processes.  [default: this user's]",
)
@click.option(
    "--leave-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long handing over may take when the node leaves.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def node(
    listen: str,
    join: tuple[str, ...],
    capacity: str | None,
    cluster: str,
    token: str | None,
    insecure: bool,
    advertise: str | None,
    socket: str | None,
    leave_timeout: float,
    as_json: bool,
) -> None:
    """Run a node in the foreground until SIGINT or SIGTERM.

    Prints one line when it is ready. On the first signal it leaves: it hands over what only it holds. A second signal
    ends it at once.

    \b
    On the first host:   hoplite node --listen 10.0.0.1:7420
    On every other:      hoplite node --listen 10.0.0.2:7420 --join 10.0.0.1:7420
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    # Blocked here and so in the node's threads, which start now: a signal that one of them took would wake nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    running = Node(
        listen=listen,
        join=join,
        capacity=capacity,
        cluster=cluster,
        token=token,
        insecure=insecure,
        advertise=advertise,
        socket=socket,
    )
    try:
        if as_json:
            print_json({"address": running.address, "socket": running.socket, "id": running.id})
        else:
            click.echo(f"ready: {running.address} unix:{running.socket}")
        signal.sigwait(ENDS)
        for number in ENDS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        click.echo("leaving: handing over what only this node holds", err=True)
    finally:
        running.close(leave_timeout)
