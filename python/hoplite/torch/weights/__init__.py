"""Model weights by name: `publish`, `fetch` and `fetch_async`.

A publication is a manifest and data objects. `manifest` is the format, `names` are those of its objects;
`sources` reads tensors of the publisher, `deltas` finds what changed, `writing` puts it, and `publishing` is the call;
`choosing` finds a version, `transfer` brings its bytes, `placing` copies them, and `fetching` is the call.
docs/weights.md is the guide.
"""

from hoplite.torch.weights.fetching import fetch, fetch_async
from hoplite.torch.weights.manifest import Manifest, ManifestInvalid
from hoplite.torch.weights.publishing import Publication, publish
from hoplite.torch.weights.results import Staged, Weights

__all__ = ["Manifest", "ManifestInvalid", "Publication", "Staged", "Weights", "fetch", "fetch_async", "publish"]
