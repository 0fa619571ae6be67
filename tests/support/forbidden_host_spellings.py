"""Spellings of hosts that nobody may have this service connect to, for every place where users name one."""

FORBIDDEN_HOSTS = (
    "127.0.0.1",
    "127.1",
    "127.0.0.1.",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0x7f000001",
    "0x7f.0.0.1",
    "0.0.0.0",  # noqa: S104 - not bound to
    "0",
    "10.0.0.5",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "0xa9fea9fe",
    "2852039166",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::169.254.169.254]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "evil.localhost",
    "127\u30020\u30020\u30021",
    "127\uff0e0\uff0e0\uff0e1",
    "127\uff610\uff610\uff611",
    "localhost\u3002",
)
"""Refused as they stand."""

FORBIDDEN_ADDRESSES = (
    "127.0.0.1",
    "0.0.0.0",  # noqa: S104 - not bound to
    "10.0.0.5",
    "100.64.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "224.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fe80::1%eth0",
    "fd00:ec2::254",
)
"""Refused where a name has one of them."""

ALLOWED_HOSTS = (
    "github.com",
    "8.8.8.8",
    "[2606:4700:4700::1111]",
    "[64:ff9b::808:808]",
    "ghcr.io",
    "xn--bcher-kva.example",
)
"""Not refused as they stand."""


def fake_resolver(*addresses: str):
    """A resolver that gives one of these addresses after the other, the last one for good."""
    left = list(addresses)

    def resolve(_host, port, **_):
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(None, None, None, "", (address, port))]

    return resolve
