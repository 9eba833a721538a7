"""Valid and invalid host names, for the tests of everything that reads host names."""

from __future__ import annotations

import re

GOOD = [
    "h0",
    "gpu-17.example.com",
    "node_1",
    "10.0.0.1",
    "::1",
    "fe80::1%eth0.100",
    "me@gpu-17",
    "a.b@10.0.0.1",
    "1",
    "h.",
]

BAD = [
    "",
    "h0; touch x #",
    "h0 h1",
    "h0\nh1",
    "h0\n",
    "h0\x1b]0;title\x07",
    "-oProxyCommand=touch x",
    "me@-oProxyCommand=x",
    "-l@h0",
    "@h0",
    "a@b@c",
    "$(id)",
    "`id`",
    "h0'",
    "h0/x",
    "h0:22",
    "h0=1",
    "fe80::1%eth0;id",
    "fe80::1%$(id)",
    "fe80::1%eth0\nh1",
    "fe80::1%-x",
    "h\u043e0",
    "h\u202e0",
    "\uff48\uff10",
    "h" * 254,
]

# In files with one host per line, line breaks and extra words are separate errors.
ONE_WORD = [name for name in BAD if name and not re.search(r"[\s#]", name)]
