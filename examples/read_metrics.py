"""How do I read the metrics of a node? With `http`, it serves them to Prometheus and to any program with the key."""

import urllib.request

import hoplite
from hoplite.viewers import viewer_key

token = hoplite.new_token()

with hoplite.Node(token=token, listen="127.0.0.1:0", http=0) as node, node.client() as hp:
    hp.put(bytes(1_000_000), name="weights/1")

    # The same key as `hoplite token viewer --token-file FILE` prints.
    key = viewer_key(token)
    request = urllib.request.Request(f"{node.http}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as reply:
        lines = reply.read().decode().splitlines()

    complete = 'hoplite_objects{state="complete"}'
    print(*(line for line in lines if line.startswith(complete)))  # hoplite_objects{state="complete"} 1.0
