"""The agent of a lab: a program with the interface of ssh that runs commands on the lab's hosts.

It is a shell script rather than Python, because a launcher calls it hundreds of times: it takes 4 ms. Of a lab it
depends on the names, addresses and keepers of the hosts only.
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
# Most options of ssh describe the connection, which is fixed here, so they are ignored; -n redirects stdin.
# The remaining words are joined by spaces and run by a shell on the host, with this environment, files and folder.
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
# Like ssh, which accepts options after the host too.
read_options "$@"
shift $((OPTIND - 1))

case $host in
{cases}
*)
    echo "$0: the lab {lab} has no host $host: use one of {names}" >&2
    exit 255
    ;;
esac
if [ $# -eq 0 ]; then
    set -- "exec ${{SHELL:-/bin/sh}}"
fi
exec nsenter "--target=$keeper" --net --uts --mount -- env "--chdir=$PWD" /bin/sh -c "$*"
"""


def write(path: Path, lab: str, hosts: tuple[HostRecord, ...]) -> None:
    """Writes the agent of a lab as an executable."""
    cases = "\n".join(f"{host.name} | {host.address}) keeper={host.keeper.process} ;;" for host in hosts)
    names = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name} to {hosts[-1].name}"
    path.write_text(SCRIPT.format(lab=lab, path=shlex.quote(str(path)), cases=cases, names=names))
    path.chmod(0o755)
