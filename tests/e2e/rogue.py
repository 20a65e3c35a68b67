"""A host of the network that attacks all ports of a run, for test_strangers.py. It speaks UCX's wire format, the beginning of a
handshake, HTTP, and noise.

    ip netns exec SPACE python3 rogue.py CONNECTIONS HALF_OPEN HOST:PORT...

Each line of stdin begins a wave: HALF_OPEN connections to each port that stay open until the next wave, then CONNECTIONS to
each port, one after the other, that send something and end. Prints how many of them were made. Ends with stdin."""

import random
import resource
import socket
import struct
import sys

count, half_open = int(sys.argv[1]), int(sys.argv[2])
places = [(host, int(port)) for host, _, port in (word.rpartition(":") for word in sys.argv[3:])]
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
dice = random.Random(7)

# UCX 1.13: src/uct/tcp/tcp.h, src/ucp/core/ucp_types.h. Packed, in native byte order.
MAGIC = struct.pack("<Q", 0xCAFEBABE12345678)
CONNECTION, PUT_REQUEST, KEEP_ALIVE = 32, 33, 35  # of TCP
UCP_PUT, UCP_GET, UCP_RTR, UCP_ACK, UCP_MESSAGE, UCP_MESSAGE_REPLY = 17, 18, 11, 22, 23, 26
ADDRESSES = [0, 8, 0x400000, 0x555555554000, 0x7F0000000000, 0x7FFFF7DD0000, 0xFFFFFFFFFFFFFFF8]


def message(kind, body):
    return struct.pack("<BI", kind, len(body)) + body


def greeting(place, to_endpoint):
    ip = socket.inet_aton(place[0])
    flags, endpoint = (1, dice.choice(ADDRESSES)) if to_endpoint else (0, 1)
    return MAGIC + message(CONNECTION, struct.pack("<IBQ", 1, flags, endpoint) + struct.pack("<HH", socket.AF_INET, 0) + ip + bytes(8))


def ucx(place):
    """Writes to chosen addresses, and messages that name chosen endpoints, which UCX takes for pointers."""
    address = dice.choice(ADDRESSES)
    endpoint = struct.pack("<QQ", address, address)
    return greeting(place, dice.random() < 0.3) + b"".join((
        message(PUT_REQUEST, struct.pack("<QQI", address, 4096, 1)) + b"\xCC" * 4096,
        message(UCP_PUT, struct.pack("<QQB", address, address, 0) + b"\xCC" * 64),
        message(UCP_GET, struct.pack("<QQ", address, 4096) + endpoint + b"\0"),
        message(UCP_RTR, endpoint + struct.pack("<QQQ", address, 4096, 0)),
        message(UCP_ACK, endpoint),
        message(UCP_MESSAGE, struct.pack("<IHH", 1, 64, 0) + b"\xCC" * 128),
        message(UCP_MESSAGE_REPLY, struct.pack("<IHH", 1, 64, 0) + b"\xCC" * 128 + endpoint),
        message(KEEP_ALIVE, b"")))


def hello(_):
    """The magic of the handshake (transport/stream/secure.hpp), a key and a wrong proof; then the head of a huge message."""
    return b"SsStrm2\n" + dice.randbytes(64) + struct.pack("<II", 48, 0xFFFFFFFF) * 10


def noise(_):
    return dice.randbytes(dice.choice((1, 8, 31, 71, 72, 73, 5000)))


def http(_):
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(place):
    attempt = socket.socket()
    attempt.settimeout(5)
    try:
        attempt.connect(place)
        return attempt
    except OSError:
        attempt.close()
        return None


for _ in sys.stdin:
    kept, made = [], 0
    for place in places:
        for number in range(half_open):
            if one := connect(place):
                kept.append(one)
                if number % 2:
                    one.send(hello(place)[:40])
    for number in range(count):
        for place in places:
            one = connect(place)
            if not one:
                continue
            made += 1
            try:
                one.sendall(dice.choice((ucx, ucx, hello, noise, http))(place))
                if number % 2:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            except OSError:
                pass
            one.close()
    print(len(kept), made, flush=True)
