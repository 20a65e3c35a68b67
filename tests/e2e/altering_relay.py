"""A relay on the path of a host's connections, for test_network.py: all that the host sends to other hosts passes it.
It changes one bit of a connection that has carried FIRST bytes; of CHANGES connections in all.

    ip netns exec SPACE python3 altering_relay.py PORT FIRST CHANGES

Prints a line when it listens, and one for each change. nft must redirect connections without mark 7 to PORT."""

import socket
import struct
import sys
import threading

SO_ORIGINAL_DST, MARK = 80, 7
port, first, left = (int(word) for word in sys.argv[1:])
lock = threading.Lock()


def pump(source, sink, alters):
    global left
    passed, changed = 0, False
    try:
        while data := source.recv(1 << 16):
            with lock:
                if alters and not changed and left > 0 and passed + len(data) > first >= passed:
                    data = bytearray(data)
                    data[first - passed] ^= 4
                    left, changed = left - 1, True
                    print("changed", flush=True)
            passed += len(data)
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def relay(caller):
    place = caller.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    to_port, ip = struct.unpack("!2xH4s8x", place)
    called = socket.socket()
    called.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    try:
        called.connect((socket.inet_ntoa(ip), to_port))
    except OSError:
        caller.close()
        return
    for end in (caller, called):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=pump, args=(called, caller, True), daemon=True).start()
    pump(caller, called, True)


listener = socket.create_server(("0.0.0.0", port))
print("listens", flush=True)
while True:
    threading.Thread(target=relay, args=(listener.accept()[0],), daemon=True).start()
