"""Model weights by name: `publish`, `fetch`, `fetch_async` and `delete`.

A publication is a manifest and data objects. `manifest` is the format, `names` are those of its objects;
`checking` and `sources` read tensors of the publisher, `streams` those that come one by one, `deltas` finds what
changed, `writing` puts it, and `publishing` is the call; `deleting` removes a version;
`choosing` finds a version, `transfer` brings its bytes, `placing` copies them, and `fetching` is the call; `loaders`
finds what a loader of a model reads.
docs/weights.md is the guide.
"""

from hoplite.torch.weights.deleting import delete
from hoplite.torch.weights.fetching import fetch, fetch_async
from hoplite.torch.weights.loaders import record
from hoplite.torch.weights.manifest import Manifest, ManifestInvalid
from hoplite.torch.weights.publishing import Publication, publish
from hoplite.torch.weights.results import Staged, Weights

__all__ = [
    "Manifest",
    "ManifestInvalid",
    "Publication",
    "Staged",
    "Weights",
    "delete",
    "fetch",
    "fetch_async",
    "publish",
    "record",
]
