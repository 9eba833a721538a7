"""All exceptions of Hoplite: one base class, and one subclass for each error that callers handle differently.

Where Python has a matching built-in exception (TimeoutError, ValueError, ConnectionError, ...), it is the second base.
Each message names the object, the nodes and the numbers.
"""


class HopliteError(Exception):
    """Base class of all errors of this package."""


class Timeout(HopliteError, TimeoutError):
    """The timeout of a call expired. The object may still appear: call again, or check which process did not put it."""


class ObjectLost(HopliteError):
    """No copy of an object is left, or too few inputs of a reduce can still arrive. Put the object again."""


class ObjectCorrupt(HopliteError):
    """All nodes with a copy sent bytes that do not match the digest of the put. Delete the object and put it again."""


class ObjectDeleted(HopliteError):
    """The object, or an input of the reduce that produces it, was deleted."""


class NameTaken(HopliteError):
    """An object with this name exists. Delete it first, or use another name."""


class StoreFull(HopliteError):
    """The node had no capacity or memory for an object within the timeout, or the object is larger than the store.

    Delete objects, drop arrays that `get` returned, increase the capacity, or set a spill directory.
    """


class ShapeMismatch(HopliteError, ValueError, RuntimeError):
    """Two inputs of a reduce, or an object and its `out`, differ in shape or dtype. The message names both."""


class UnknownOp(HopliteError, ValueError):
    """The op of a reduce is unknown. Use sum, min, max, prod, mean, any or all."""


class UnsupportedDtype(HopliteError, TypeError):
    """A value or dtype is not supported by `put`, by `get`, or by the op of a reduce."""


class InvalidArgument(HopliteError, ValueError):
    """An argument or setting is not valid, such as a negative timeout or an empty list of inputs."""


class NodeDown(HopliteError, ConnectionError):
    """The node of this client has closed, failed or does not reply. Start it again, or attach to another node."""


class NotAllowed(HopliteError, PermissionError):
    """The client's capability does not permit the call, has expired or was rejected, or the node requires one.

    Use names under the prefix in the message, or get another capability.
    """


class ClientClosed(HopliteError):
    """The client was closed by `close` or `hoplite.shutdown`. Create another with `hoplite.init()`."""


class ForkedClient(HopliteError):
    """A client was used in a forked child, which can't attach to the node of its parent.

    The node has no socket, or is gone. Call `hoplite.init(node=hoplite.Node())` to start a node in the child.
    """


class JoinError(HopliteError, ConnectionError):
    """A node could not join: no member replied, or its cluster name, token, CA or protocol version differs.

    `Node.address` raises it too, if the node has no TCP port.
    """


class AddressInUse(HopliteError, OSError):
    """Another process uses the address or the socket on which a node should listen."""


class ConnectError(HopliteError, ConnectionError):
    """No node serves the socket to which a client should attach. Start one with `hoplite node`."""


class PackageMissing(HopliteError, ImportError):
    """A package that a part of Hoplite needs is missing or has an unsupported version. The message has the command."""


class DecodeError(HopliteError):
    """An object can't be decoded here: a class can't be imported or is not allowed, or the bytes are corrupt."""
