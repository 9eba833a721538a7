"""Hoplite as a weight-transfer backend of vLLM: servers load published weights by name.

vLLM finds it by its entry point. Start a server with `VLLM_SERVER_DEV_MODE=1` and
`--weight-transfer-config '{"backend": "hoplite"}'`, and on the trainer call

    engine = WeightTransferTrainerFactory.trainer_init(HopliteTrainerInitInfo(rank=rank), client=client, source=source)
    engine.send_weights()

There is no group: servers and trainers may come, go and restart at any time. Importing the package registers the
backend. It needs the extra `vllm`.
"""

from hoplite.vllm import needs as _needs

_needs.check()

from hoplite.vllm.engine import HopliteWeightTransferEngine  # noqa: E402 - vLLM must be there for the others
from hoplite.vllm.registration import register  # noqa: E402
from hoplite.vllm.trainer import HopliteTrainerEngine, HopliteTrainerInitInfo, load  # noqa: E402

register()

__all__ = [
    "HopliteTrainerEngine",
    "HopliteTrainerInitInfo",
    "HopliteWeightTransferEngine",
    "load",
    "register",
]
