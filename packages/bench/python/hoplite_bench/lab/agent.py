"""The agent of a lab: a program with the interface of ssh that runs commands on the lab's hosts.

It is a shell script rather than Python, because a launcher calls it hundreds of times: it takes 4 ms. Of a lab it
depends on the names, addresses and keepers of the hosts only. Other emulated hosts use the same script with their own
way in.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hoplite_bench.lab.records import HostRecord

SCRIPT = """\
#!/bin/sh
# Runs a command on a host of {place}, as ssh would: {path} [options of ssh] host command...
# Most options of ssh describe the connection, which is fixed here, so they are ignored; -n redirects stdin.
# The remaining words are joined by spaces and run by a shell on the host.
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
    echo "$0: {place} has no host $host: use one of {names}" >&2
    exit 255
    ;;
esac
if [ $# -eq 0 ]; then
    set -- "exec ${{SHELL:-/bin/sh}}"
fi
exec {enter}
"""

# With the environment, files and folder of the caller.
ENTER = 'nsenter "--target=$target" --net --uts --mount -- env "--chdir=$PWD" /bin/sh -c "$*"'


def write(path: Path, lab: str, hosts: tuple[HostRecord, ...]) -> None:
    """Writes the agent of a lab as an executable."""
    targets = {(host.name, host.address): str(host.keeper.process) for host in hosts}
    write_script(path, f"the lab {lab}", targets, ENTER)


def write_script(path: Path, place: str, targets: Mapping[tuple[str, str], str], enter: str) -> None:
    """Writes an executable with the interface of ssh.

    Args:
        path: the executable.
        place: what the hosts belong to, for errors.
        targets: for each name and address of a host, what `enter` finds in the shell variable `target`. If hosts share
            an address, it stands for the first of them.
        enter: the shell command that runs a command on a host; `$*` is that command.
    """
    cases = "\n".join(f"{name} | {address}) target={shlex.quote(to)} ;;" for (name, address), to in targets.items())
    names = [name for name, _ in targets]
    known = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    text = SCRIPT.format(place=place, path=shlex.quote(str(path)), cases=cases, names=known, enter=enter)
    path.write_text(text)
    path.chmod(0o755)
