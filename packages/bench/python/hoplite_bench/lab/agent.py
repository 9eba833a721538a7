"""The agent of a lab: a program that launchers call as they would call ssh, and that runs commands on the hosts.

A shell script rather than Python, for a launcher calls it hundreds of times: it takes 4 ms. Knows nothing of labs but
the names, addresses and keepers of the hosts.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.lab.records import HostRecord

SCRIPT = """\
#!/bin/sh
# Runs a command on a host of the lab {lab}, as ssh would: {path} [options of ssh] host command...
# Options of ssh say how to get there, which is known, so they are dropped; -n takes no input.
# The rest is joined by spaces and given to a shell there, with this one's environment, files and folder.
options=46AaB:b:Cc:D:E:e:F:fGgI:i:J:KkL:l:MmNnO:o:P:p:Q:qR:S:sTtVvW:w:XxYy

read_options() {{
    OPTIND=1
    while getopts "$options" option; do
        case $option in
        n) exec </dev/null ;;
        \\?) exit 255 ;;
        esac
    done
}}

read_options "$@"
shift $((OPTIND - 1))
if [ $# -eq 0 ]; then
    echo "usage: $0 [options of ssh] host command..." >&2
    exit 255
fi
host=${{1##*@}}
shift
# As ssh, which takes options after the host too.
read_options "$@"
shift $((OPTIND - 1))

case $host in
{cases}
*)
    echo "$0: host $host is not in the lab {lab}, which has {names}" >&2
    exit 255
    ;;
esac
if [ $# -eq 0 ]; then
    set -- "exec ${{SHELL:-/bin/sh}}"
fi
exec nsenter "--target=$keeper" --net --uts --mount -- env "--chdir=$PWD" /bin/sh -c "$*"
"""


def write(path: Path, lab: str, hosts: tuple[HostRecord, ...]) -> None:
    """Writes the agent of a lab, ready to be executed."""
    cases = "\n".join(f"{host.name} | {host.address}) keeper={host.keeper.process} ;;" for host in hosts)
    names = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name} to {hosts[-1].name}"
    path.write_text(SCRIPT.format(lab=lab, path=shlex.quote(str(path)), cases=cases, names=names))
    path.chmod(0o755)
