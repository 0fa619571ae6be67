"""Tries each way from a job's network to some addresses: `network_attacks.py PORT ADDRESSES ROUNDS`, by itself.

What is sent names how and to which address; who listens there tells what has arrived. After each round it waits for a
file in the project's storage.
"""

import contextlib
import ctypes
import errno
import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

UDP_LITE, SCTP = 136, 132
IP_PKTINFO, IP_FREEBIND, IP_UNICAST_IF, IPV6_PKTINFO = 8, 15, 50, 50
LOOSE_SOURCE_ROUTE = 131
NEW_USER = 0x10000000
NAMES = {name: number for number, name in socket.if_nameindex()}
DEVICE = next((name for name in NAMES if name != "lo"), "lo")
SECONDS = 2
answers = []


def plain(_, target):
    pass


def on_device(opened, _, device=DEVICE):
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())


def on_loopback(opened, target):
    on_device(opened, target, "lo")


def by_index(opened, _):
    opened.setsockopt(socket.IPPROTO_IP, IP_UNICAST_IF, struct.pack("!I", NAMES[DEVICE]))


def without_route(opened, target):
    on_device(opened, target)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)


def as_broadcast(opened, target):
    on_device(opened, target)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    opened.setsockopt(
        socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), NAMES[DEVICE])
    )


def from_loopback(opened, target):
    opened.bind(("127.0.0.1", 0))
    on_device(opened, target)


def from_another(opened, target):
    opened.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    opened.bind(("169.254.169.253", 0))
    on_device(opened, target)


def by_source_route(opened, target):
    option = bytes([LOOSE_SOURCE_ROUTE, 7, 4]) + socket.inet_aton(target) + b"\0"
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, option)
    on_device(opened, target)


def tcp(way, target, family=socket.AF_INET, address=None):
    with socket.socket(family) as opened:
        opened.settimeout(SECONDS)
        way(opened, target)
        opened.connect((address or target, PORT))
        opened.sendall(line("tcp", way, target))
        opened.recv(1)


def tcp_6(way, target):
    tcp(way, target, socket.AF_INET6, f"::ffff:{target}")


def udp(way, target, protocol=0):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, protocol) as opened:
        way(opened, target)
        opened.sendto(line("udp", way, target), (target, PORT))


def udp_lite(way, target):
    udp(way, target, UDP_LITE)


def sctp(way, target):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, SCTP) as opened:
        opened.settimeout(SECONDS)
        way(opened, target)
        opened.connect((target, PORT))
        answers.append(f"sctp {way.__name__} {target}")


def packet_info(way, target):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        way(opened, target)
        info = struct.pack("i4s4s", NAMES[DEVICE], bytes(4), bytes(4))
        message = [(socket.IPPROTO_IP, IP_PKTINFO, info)]
        opened.sendmsg([line("packet_info", way, target)], message, 0, (target, PORT))


def packet_info_6(way, target):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        info = struct.pack("16si", bytes(16), NAMES[DEVICE])
        message = [(socket.IPPROTO_IPV6, IPV6_PKTINFO, info)]
        opened.sendmsg([line("packet_info_6", way, target)], message, 0, (f"::ffff:{target}", PORT))


def ping(way, target):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as opened:
        opened.settimeout(SECONDS)
        way(opened, target)
        opened.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), (target, 0))
        opened.recv(100)
        answers.append(f"ping {way.__name__} {target}")


def raw(way, target):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP):
        answers.append(f"raw {way.__name__} {target}")


def frame(way, target):
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0800):
        answers.append(f"frame {way.__name__} {target}")


def ipv_6(way, target):
    """Send to all neighbours, and to an address as if it had one of IPv6."""
    for address in ("ff02::1", f"2002:{socket.inet_aton(target).hex(':', 2)}::1"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
            if way is on_device:
                way(opened, target)
            opened.sendto(b"ipv_6", (address, PORT, 0, NAMES[DEVICE] if address.startswith("ff") else 0))
            answers.append(f"ipv_6 {address}")


def line(kind, way, target):
    return f"{kind} {way.__name__} {target}\n".encode()


WAYS = [
    plain,
    on_device,
    on_loopback,
    by_index,
    without_route,
    as_broadcast,
    from_loopback,
    from_another,
    by_source_route,
]
FEW = [plain, on_device]
KINDS = {tcp: WAYS, udp: WAYS, packet_info: WAYS, ping: WAYS}
KINDS |= {tcp_6: FEW, udp_lite: FEW, sctp: FEW, packet_info_6: FEW, raw: FEW, frame: FEW, ipv_6: FEW}


def try_to_change():
    """Try to delete the packet filter and the route: as the job is, and as root of a user namespace of its own."""
    libc = ctypes.CDLL(None)
    for user in ("job", "root"):
        if os.fork() == 0:
            if user == "root":
                libc.unshare(NEW_USER)
            for name in ("user", "net"):
                with contextlib.suppress(OSError):
                    libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0)
            table = struct.pack("HH9s3x", 13, 1, b"gradient")
            batch = [(16, struct.pack("!BBH", 0, 0, 10)), (10 << 8 | 2, struct.pack("!BBH", 1, 0, 0) + table)]
            batch.append((17, batch[0][1]))
            route = [(25, struct.pack("8BI", socket.AF_INET, 0, 0, 0, 254, 0, 0, 0, 0))]
            codes = [refusal(12, batch), refusal(socket.NETLINK_ROUTE, route)]
            os._exit(codes != [-errno.EPERM] * 2)
        if os.wait()[1]:
            answers.append(f"changed by {user}")


def refusal(protocol, messages):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.send(b"".join(struct.pack("IHHII", 16 + len(body), kind, 5, 0, 0) + body for kind, body in messages))
        return struct.unpack_from("i", kernel.recv(1000), 16)[0]


def attempt(kind, way, target):
    with contextlib.suppress(OSError):
        kind(way, target)


def attack(targets):
    threads = [
        threading.Thread(target=attempt, args=(kind, way, target))
        for target in targets
        for kind, ways in KINDS.items()
        for way in ways
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PORT, addresses, rounds = int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
for number in range(rounds):
    try_to_change()
    attack(addresses)
    sys.stdout.write(f"ROUND{number}\n")
    sys.stdout.flush()
    while not Path(f"/storage/over{number}").exists():
        time.sleep(0.05)
sys.stdout.write("ANSWERS" + json.dumps(answers))
