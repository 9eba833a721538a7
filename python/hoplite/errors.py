"""Every error that Hoplite raises: one base class, one subclass for each thing a caller can act on.

Where a built-in exception says the same (TimeoutError, ValueError, ConnectionError, ...), it is the second base. The
message names the object, the nodes and the numbers.
"""


class HopliteError(Exception):
    """Base of all errors of this package."""


class Timeout(HopliteError, TimeoutError):
    """The time given to a call passed first; what it waited for may still come. Ask again, or look who is missing."""


class ObjectLost(HopliteError):
    """No copy of an object is left, or too few inputs of a reduce can still arrive. Put it again."""


class ObjectCorrupt(HopliteError):
    """Every node that has an object sent other bytes than its maker put with a digest. Delete it and put it again."""


class ObjectDeleted(HopliteError):
    """The object, or an input of the reduce that makes it, was deleted."""


class NameTaken(HopliteError):
    """An object of this name is alive, whatever its bytes. Delete it first, or take the next number."""


class StoreFull(HopliteError):
    """The node's store had no room for this object in time, or never will; or the machine has no memory for it.

    Delete objects, drop views of them, give the node more capacity, or a folder to spill to.
    """


class ShapeMismatch(HopliteError, ValueError, RuntimeError):
    """Two inputs of a reduce differ in shape or dtype; the message names both."""


class UnknownOp(HopliteError, ValueError):
    """A reduce knows sum, min, max, prod, mean, any and all only."""


class UnsupportedDtype(HopliteError, TypeError):
    """A value, or the elements of an array, are of a type that can't be put or can't be reduced so."""


class InvalidArgument(HopliteError, ValueError):
    """An argument that can't be right whatever the cluster's state: a negative timeout, a count of zero, no refs."""


class NodeDown(HopliteError, ConnectionError):
    """The node of this client has closed, died or can't be reached. Connect to another one."""


class NotAllowed(HopliteError, PermissionError):
    """The capability of this client does not allow it, has expired or is refused; or its node takes no client without.

    Use names below the prefix that the message tells, or get another capability.
    """


class ClientClosed(HopliteError):
    """The client was closed by `close` or `hoplite.shutdown`. Create another by `hoplite.init()`."""


class ForkedClient(HopliteError):
    """A client was used in a child made by fork, and the parent's node can't be attached to from there.

    It has no socket, or is gone. `init(node=hoplite.Node())` starts a node in the child.
    """


class JoinError(HopliteError, ConnectionError):
    """A node could not join: none answered, or with another cluster name, token or protocol; or it can't be joined."""


class AddressInUse(HopliteError, OSError):
    """Another process has the address or the socket that a node was to listen on."""


class ConnectError(HopliteError, ConnectionError):
    """No node serves the socket that a client was to attach to."""


class DecodeError(HopliteError):
    """An object's bytes can't be made into a value here: a class that can't be imported, or bytes that are damaged."""
