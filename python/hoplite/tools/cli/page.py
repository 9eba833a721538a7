"""The page docs/settings.md, made of the table of settings: `python -m hoplite.tools.cli.page > docs/settings.md`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hoplite.settings import CONFIG_VARIABLE, SETTINGS

if TYPE_CHECKING:
    from hoplite.settings import Setting

HEAD = f"""# Settings

This page is made of the table in `hoplite.settings`: `python -m hoplite.tools.cli.page > docs/settings.md`.

A value is taken from the first of these that says one:

1. the argument of `hoplite.init(...)` or `hoplite.Node(...)`, or the option of `hoplite node`;
2. the environment's variable; an empty one says nothing;
3. the key of a TOML file, which `config="FILE"`, `--config FILE` or the variable {CONFIG_VARIABLE} names;
4. the default.

No file is read unless it is named: what a program does depends on what can be seen where it is started. Keys stand
at the top of the file, without sections:

```toml
listen = "10.0.0.2:7420"
join = ["10.0.0.1:7420", "10.0.0.3:7420"]
cluster = "training"
capacity = "64GiB"
token_file = "/etc/hoplite.token"  # made by: hoplite token new --out /etc/hoplite.token
```

A key that is none, a value of the wrong type and a file that can't be read are errors; so is a file with a token that
others can read. A variable that begins with HOPLITE_ and that nothing reads is a warning, once for each process.

What concerns a node has no effect on one that runs already. `hoplite.init()` refuses arguments that would have none,
and leaves alone what the environment or a file says; the name of the cluster is compared in any case.

## Of a node
"""

USERS = """## For programs that use a node
"""

TAIL = """## How a script finds its node

`hoplite.init()` takes the first of these: the node or the cluster of `address`; the node of the host, which serves
`socket`; a node that another script has embedded; a node of its own. Of several scripts that look at once, one
becomes the node and the others attach to it. A cluster given as `address` is joined without a look around; the nodes
of `join` are joined only by a script that becomes the node.

The default socket is `hoplite/node.sock` in XDG_RUNTIME_DIR, or in `/tmp/hoplite-UID` where that is not set or can't
be written. In a Slurm job it is `node-slurmJOB.sock`, and `node.sock` is the second choice. With another scheduler
set HOPLITE_SOCKET to a path of the job's own. If another process serves the socket already, `hoplite node` does not
start.

An embedded node serves a socket beside that one, such as `node-embedded.sock`, so it never takes the place of
`hoplite node`: what starts after `hoplite node` uses it, and what attached to the embedded node before stays there. A
program that must not embed a node says `hoplite.init("local")`, or HOPLITE_ADDRESS=local in its environment: it waits
for the node of the host, for `timeout` seconds ([decision
27](decisions/027-sockets-host-and-embedded-nodes.md)).

A node whose socket file was removed, as at a logout that removes XDG_RUNTIME_DIR, makes it again within 2 s. If it
can't, it logs an error, and an `init()` that finds no node and no such folder warns of it; set HOPLITE_SOCKET to a
path outside of that folder for a node that is to outlive logins.

## As a service

`hoplite node` tells systemd when it is ready and when it leaves. `/etc/systemd/system/hoplite.service`:

```ini
[Unit]
Description=Hoplite node
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User=hoplite
RuntimeDirectory=hoplite
RuntimeDirectoryMode=0700
Environment=HOPLITE_SOCKET=/run/hoplite/node.sock
ExecStart=/opt/hoplite/bin/hoplite node --config /etc/hoplite.toml
# Longer than leave_timeout: the node hands over what only it holds.
TimeoutStopSec=45
Restart=on-failure
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
```

Only processes of the same user can attach. They find the node by `HOPLITE_ADDRESS=unix:/run/hoplite/node.sock`, and
wait for it when they start before it. Clients attach to a restarted node by themselves.

Containers share a node by a volume that has its socket: each mounts the folder, runs as the user of the node, and sets
the same `HOPLITE_ADDRESS`. They need neither the PID nor the IPC namespace of the host, and no common `/dev/shm`.
"""


def page() -> str:
    """The page as it should be."""
    of_node = [setting for setting in SETTINGS if setting.of_node]
    of_user = [setting for setting in SETTINGS if not setting.of_node]
    parts = [HEAD, *map(_entry, of_node), USERS, *map(_entry, of_user), TAIL]
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    names = [f"`{setting.name}`", f"`{setting.variable}`"]
    if setting.of_node and not setting.is_secret:
        names.append(f"`{setting.option}`")
    default = setting.default_text or f"`{setting.default}`"
    return f"""### {setting.name}

{setting.help}

- Names: {", ".join(names)}
- Takes: {setting.kind.in_file}
- Default: {default}
"""


if __name__ == "__main__":
    sys.stdout.write(page())
