"""Limits each TCP connection that an interface sends on: an HTB queue with one class per flow, and a classifier.

A classic BPF program (cls_bpf) hashes each packet to a class, and each class sends at the limit. Two connections in one
class share its rate. Any two connections do so with a probability of 1/512. Up to 64 connections in a row from one host
to one port of another do not: the kernel raises the port by 2 to 16 for each. This module does not depend on links.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from types import SimpleNamespace
from typing import Any

FLOW_BITS = 9
FLOWS = 1 << FLOW_BITS

# Codes of classic BPF instructions.
LOAD_WORD, LOAD_HALF, LOAD_BYTE, COPY_TO_X = 0x20, 0x28, 0x30, 0x07
ADD_X, ADD, MULTIPLY, AND, SHIFT_RIGHT, JUMP_IF_EQUAL = 0x0C, 0x04, 0x24, 0x54, 0x74, 0x15
RETURN_A, RETURN = 0x16, 0x06

# Offsets from which a BPF program reads the type of a frame, and the IP header.
FRAME_TYPE, IP_HEADER = -0x1000, -0x100000
ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800

# 2^32 divided by the golden ratio: the upper bits of its product with an address are a hash of the address.
GOLDEN = 0x9E3779B1

# Offsets of the handle in a request for a class, and of the status in the kernel's reply; maximum size of that reply.
HANDLE_OFFSET, STATUS_OFFSET, REPLY_BYTES = 24, 16, 64 * 1024


def cap(netlink: Any, index: int, queue: int, parent: int, **limits: int) -> None:  # noqa: ANN401 - pyroute2 has no types
    """Replaces the queue below a class by one that limits each connection.

    Args:
        netlink: a netlink socket in the interface's namespace; this thread is in that namespace too.
        index: index of the interface.
        queue: handle of the new queue.
        parent: handle of the class.
        limits: options of the HTB class of a connection: rate and bursts in bytes.

    Raises:
        NetlinkError, OSError: the kernel refused a request.
    """
    from pyroute2 import IPBatch
    from pyroute2.netlink.rtnl.tcmsg import plugins

    plugins["bpf"] = _bpf_plugin()
    # Until all classes exist, connections without one share the first class, so none exceeds the limit.
    netlink.tc("replace", "htb", index, queue, parent=parent, default=1)
    netlink.tc("add-filter", "bpf", index, parent=queue, prio=1, protocol=ETH_P_ALL, program=_program(queue))
    with IPBatch() as compiler:
        compiler.tc("add-class", "htb", index, queue, parent=queue, **limits)
        request = bytearray(compiler.batch)
    # Encoded once, because that takes ten times as long as the kernel needs for a class. Only the handle differs.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        for flow in range(1, FLOWS + 1):
            struct.pack_into("=I", request, HANDLE_OFFSET, queue | flow)
            kernel.send(request)
            (code,) = struct.unpack_from("=i", kernel.recv(REPLY_BYTES), STATUS_OFFSET)
            if code:
                raise OSError(-code, os.strerror(-code))


def _program(queue: int) -> bytes:
    """The classic BPF program that returns the class of a packet.

    The class depends on the sum of the ports, so it does not matter which side opened the connection. The kernel gives
    ports of one parity to connections that a host opens, so the lowest bit is dropped. For anything but TCP over IPv4,
    the program returns the queue itself, which does not limit it. Packets of a lab have no IP options.
    """
    # Operation, operand, and the number of instructions to skip if a comparison does not hold.
    instructions = [
        (LOAD_HALF, FRAME_TYPE, 0),
        (JUMP_IF_EQUAL, ETH_P_IP, 15),
        (LOAD_BYTE, IP_HEADER + 9, 0),
        (JUMP_IF_EQUAL, socket.IPPROTO_TCP, 13),
        # The source port.
        (LOAD_HALF, IP_HEADER + 20, 0),
        (COPY_TO_X, 0, 0),
        # The destination port.
        (LOAD_HALF, IP_HEADER + 22, 0),
        (ADD_X, 0, 0),
        (SHIFT_RIGHT, 1, 0),
        (COPY_TO_X, 0, 0),
        # The destination address.
        (LOAD_WORD, IP_HEADER + 16, 0),
        (MULTIPLY, GOLDEN, 0),
        (SHIFT_RIGHT, 32 - FLOW_BITS, 0),
        (ADD_X, 0, 0),
        (AND, FLOWS - 1, 0),
        (ADD, queue + 1, 0),
        (RETURN_A, 0, 0),
        (RETURN, queue, 0),
    ]
    return b"".join(struct.pack("=HBBI", code, 0, skip, value & 0xFFFFFFFF) for code, value, skip in instructions)


@functools.cache
def _bpf_plugin() -> SimpleNamespace:
    """Encodes filters with a classic BPF program; pyroute2 encodes only those that were loaded by another request."""
    from pyroute2.netlink.rtnl.tcmsg import sched_bpf

    fixed = {"TCA_BPF_OPS_LEN": "uint16", "TCA_BPF_OPS": "cdata"}

    class Options(sched_bpf.options):  # type: ignore[misc]
        nla_map = tuple((name, fixed.get(name, kind)) for name, kind in sched_bpf.options.nla_map)

    def get_parameters(request: dict[str, Any]) -> dict[str, Any]:
        program = request["program"]
        return {"attrs": [["TCA_BPF_OPS_LEN", len(program) // 8], ["TCA_BPF_OPS", program]]}

    return SimpleNamespace(options=Options, get_parameters=get_parameters, fix_request=sched_bpf.fix_request)
