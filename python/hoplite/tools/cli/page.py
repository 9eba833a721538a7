"""Generates docs/settings.md from the table of settings: `python -m hoplite.tools.cli.page > docs/settings.md`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hoplite.settings import CONFIG_VARIABLE, SETTINGS

if TYPE_CHECKING:
    from hoplite.settings import Setting

HEAD = f"""# Settings

After this page you can configure nodes and clients, and predict which node a program uses.

    hoplite node --config /etc/hoplite.toml --capacity 64GiB
    HOPLITE_ADDRESS=local python train.py

The value of a setting comes from the first of these that sets it:

1. an argument of `hoplite.Node(...)`, `hoplite.init(...)` or `hoplite.connect(...)`, or an option of `hoplite node`;
2. its environment variable, unless that is empty;
3. its key in a TOML file;
4. its default.

**Names.** The headings below are the names of arguments and of keys in the file. The variable of `token_file` is
HOPLITE_TOKEN_FILE, its option is `--token-file`, and so on. `token` has no option: command lines are public.

**File.** Select the TOML file with `hoplite.Node(config="FILE")`, `hoplite node --config FILE` or the variable
{CONFIG_VARIABLE}. No other file is read. The keys are at the top of the file, without sections:

```toml
listen = "10.0.0.2:7420"
join = ["10.0.0.1:7420", "10.0.0.3:7420"]
cluster = "training"
capacity = "64GiB"
token_file = "/etc/hoplite.token"  # created by: hoplite token new --out /etc/hoplite.token
```

**Errors.** Hoplite raises `InvalidArgument` for:

- an unknown key or a value of the wrong type;
- a file that cannot be read;
- a file that every user can write to;
- a file that contains a token and that other users can read.

An unknown variable that starts with HOPLITE_ causes a warning, once per process.

**Running nodes.** Node settings have no effect on a node that is already running: `hoplite.init()` attaches to it and
ignores them. The exception is `cluster`. If it is set and the node belongs to another cluster, `init()` raises
`InvalidArgument`.

## Node settings
"""

USERS = """## Client settings
"""

TAIL = """## How a client finds its node

`hoplite.init(node=...)` uses the node that you pass, which must be in this process. Otherwise `hoplite.init()` uses
the first of these that exists:

1. The node or the cluster in `address`, as an argument or in the settings. If it is a cluster, `init()` starts an
   embedded node that joins it, and does not search for a running node.
2. The node that this process has already started or, in a child made by fork, the node that the parent used.
3. In a Ray worker process, the node that [`hoplite.ray.start`](ray.md) runs for its Ray node, unless `socket` is set.
4. The node of this host, which serves `socket`.
5. A node that another process has embedded.
6. A new embedded node. It uses the node settings, and joins the nodes in `join`. If the client has a `capability`,
   `init()` raises `ConnectError` instead.

If several processes start at once, one of them starts the node and the others attach to it.

**Default socket.** `socket` defaults to `hoplite/node.sock` in the directory XDG_RUNTIME_DIR. If this variable is not
set, or its directory is missing or not writable, the default is `/tmp/hoplite-UID/node.sock`. In a Slurm job, the
default is `node-slurmJOB.sock` in the same directory, and clients try `node.sock` next. With another scheduler, set
HOPLITE_SOCKET to a path for the job. If another process already serves the socket, `hoplite node` does not start.

**Embedded nodes.** An embedded node serves a socket of its own in the same directory, such as `node-embedded.sock`. It
therefore never prevents `hoplite node` from starting. Processes that start after `hoplite node` use the node of the
host. Processes that attached to the embedded node before stay with it.

To prevent embedded nodes, call `hoplite.init("local")`, or set HOPLITE_ADDRESS=local. The program then waits for the
node of this host, up to the `timeout` of `init()`
([decision 27](decisions/027-sockets-host-and-embedded-nodes.md)).

**Removed sockets.** Some systems remove XDG_RUNTIME_DIR when the user logs out. A node creates its socket file again
within 2 s after the file was removed. If it cannot, it logs an error. If `init()` then finds no node and the directory
is missing, it warns and starts an embedded node. If a node must outlive logins, set HOPLITE_SOCKET to a path in another
directory.

To run a node as a service, see [systemd](deploy/systemd.md), [Docker](deploy/docker.md),
[Kubernetes](deploy/kubernetes.md) and [Slurm](deploy/slurm.md).

---

This page is generated from `hoplite.settings`: `python -m hoplite.tools.cli.page > docs/settings.md`.
"""


def page() -> str:
    """Returns the content of docs/settings.md."""
    of_node = [setting for setting in SETTINGS if setting.of_node]
    of_user = [setting for setting in SETTINGS if not setting.of_node]
    parts = [HEAD, *map(_entry, of_node), USERS, *map(_entry, of_user), TAIL]
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    default = setting.default_text or f"`{setting.default}`"
    return f"""### {setting.name}

{setting.help}

- Value: {setting.kind.in_file}
- Default: {default}
"""


if __name__ == "__main__":
    sys.stdout.write(page())
