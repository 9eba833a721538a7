"""Hoplite as the source of weights of SGLang servers: they load published versions by name.

Start a server with `--custom-weight-loader hoplite.sglang.load_weights`, and on the trainer call

    transfer = HopliteWeightTransfer(["http://server:30000"])
    transfer.send_weights(model)

There is no group: servers and trainers may come, go and restart at any time. SGLang needs no patch. `loader` runs in
each rank of a server, `server` calls a server over HTTP, `request` is what the one sends to the other, and `trainer` is
what a trainer calls. A trainer needs no SGLang, a server no other package.
"""

from hoplite.sglang.loader import load_weights
from hoplite.sglang.server import Server
from hoplite.sglang.trainer import HopliteWeightTransfer, load

__all__ = ["HopliteWeightTransfer", "Server", "load", "load_weights"]
