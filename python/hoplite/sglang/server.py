"""An SGLang server, over HTTP: pause it, make its ranks load a version, and learn what they say.

Servers since 0.5.20 load between two calls, which older ones do not have. Does not know who publishes. Needs no SGLang.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import hoplite
from hoplite.errors import HopliteError, InvalidArgument, Timeout
from hoplite.sglang.request import ANSWER_S, LOADER, Request

if TYPE_CHECKING:
    from hoplite import Ref

MODES = ("retract", "in_place", "abort")

NOT_FOUND = 404

# What older releases do not have.
OPTIONAL = ("begin_weight_update", "update_weight_version")

# Seconds for a call that does not wait for weights: requests that run end first, or are retracted.
CALL_S = 600.0


def check_mode(mode: str) -> str:
    """Returns what a pause does with running requests.

    Raises:
        InvalidArgument: SGLang has no such mode.
    """
    if mode not in MODES:
        raise InvalidArgument(f"mode is {mode!r}: pass one of {', '.join(MODES)}")
    return mode


class Server:
    """A server of SGLang. Has the methods of vLLM's clients.

    Args:
        url: base URL, such as "http://host:30000".
        mode: what `pause` does with running requests, as in SGLang: "retract" computes their caches again with the new
            weights, "in_place" goes on with the old ones, "abort" returns what they have.
        api_key: admin key of the server, or its key; None if it has none.

    Raises:
        InvalidArgument: the URL or the mode is not valid.
    """

    def __init__(self, url: str, mode: str = "retract", api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f'{url!r} is no URL of a server: pass one such as "http://host:30000"')
        self.url = url.rstrip("/")
        self._mode = check_mode(mode)
        self._key = api_key
        # Whether the server has sessions of updates.
        self._has_sessions = True
        self._loaded: str | None = None

    def pause(self) -> None:
        """Stops generation."""
        self._call("pause_generation", {"mode": self._mode})

    def resume(self) -> None:
        """Continues generation."""
        self._call("continue_generation", {})

    def start_weight_update(self) -> None:
        """Begins an update, which makes the weights of quantized models loadable."""
        self._loaded = None
        which = {"selector": "target"}
        try:
            begun = self._call("begin_weight_update", which)
        except HopliteError:
            # A trainer that was killed has left its update open.
            self._call("end_weight_update", {})
            begun = self._call("begin_weight_update", which)
        self._has_sessions = begun is not None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Makes all ranks load a version.

        Args:
            update_info: `name` of the version, and `timeout` in seconds to wait until it is on each host; None waits
                without limit.

        Raises:
            HopliteError: the server was started without the loader, or a rank has not loaded the version. The message
                states what the weights are then.
        """
        facts = self._facts()
        timeout = update_info["timeout"]
        ranks, stages = int(facts["tp_size"]), int(facts.get("pp_size") or 1)
        client = hoplite.client()
        slots = client.slots(ranks * stages)
        try:
            wanted = [
                Request(update_info["name"], timeout, [str(slot) for slot in slots[rank::ranks]])
                for rank in range(ranks)
            ]
            which = {"selector": "target"} if self._has_sessions else {"disable_draft_model": True}
            self._call(
                "update_weights_from_tensor",
                {
                    "serialized_named_tensors": [each.payload() for each in wanted],
                    "load_format": LOADER,
                    # In this mode, requests that run keep their caches.
                    "flush_cache": self._mode != "in_place",
                    **which,
                },
                seconds=None if timeout is None else timeout + CALL_S,
            )
            self._check(slots)
            self._loaded = update_info["name"]
        finally:
            client.delete(slots)

    def finish_weight_update(self) -> None:
        """Ends the update. The server reports the version that all ranks have loaded, if there is one."""
        if self._has_sessions:
            self._call("end_weight_update", {})
        if self._loaded is not None:
            self._call("update_weight_version", {"new_version": self._loaded, "abort_all_requests": False})

    def _facts(self) -> dict[str, Any]:
        """Returns the settings of the server. SGLang ends if a call names a loader that it was not started with."""
        facts = self._call("server_info", None)
        if facts is None or "tp_size" not in facts:
            raise HopliteError(f"{self.url} is no server of SGLang that states its tp_size: check the URL")
        if LOADER not in (facts.get("custom_weight_loader") or ()):
            raise HopliteError(f"{self.url} has not this loader: start it with --custom-weight-loader {LOADER}")
        return facts

    def _check(self, slots: list[Ref]) -> None:
        """Checks the answers of all ranks, which are there when the server has replied."""
        try:
            answers = hoplite.client().get(slots, timeout=ANSWER_S)
        except Timeout as error:
            raise HopliteError(
                f"a rank of {self.url} did not state its outcome: look for hoplite.sglang in its log, and start a "
                f"node on each of its hosts ({error})"
            ) from None
        found = [bytes(answer).decode(errors="replace") for answer in answers]
        problems = sorted({*found} - {""})
        if problems and "" in found:
            # Another stage of pipeline parallelism.
            problems.insert(0, f"the model is a mix of versions, since {found.count('')} of {len(found)} ranks loaded")
        if problems:
            raise HopliteError(f"{self.url}: {'; '.join(problems)}")

    def _call(self, method: str, body: Any, seconds: float | None = CALL_S) -> dict[str, Any] | None:
        """Calls a method; returns its reply, or None if it is one that older servers do not have.

        Raises:
            HopliteError: the server is not reachable, or refuses.
            Timeout: it did not reply in time.
        """
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(f"{self.url}/{method}", data, headers)
        try:
            with urllib.request.urlopen(call, timeout=seconds) as reply:
                found = json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND and method in OPTIONAL:
                return None
            text = error.read().decode(errors="replace")[:500]
            raise HopliteError(f"{self.url} refused {method} ({error.code}): {text}") from None
        except TimeoutError:
            raise Timeout(f"{self.url} did not reply to {method} in {seconds:g} s") from None
        except (OSError, ValueError) as error:
            raise HopliteError(f"{self.url} did not reply to {method}: {error}") from None
        if not isinstance(found, dict):
            raise HopliteError(f"{self.url} replied to {method} with a {type(found).__name__}: check the URL")
        if found.get("success") is False:
            raise HopliteError(f"{self.url} refused {method}: {found.get('message')}")
        return found
