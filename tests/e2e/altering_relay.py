"""A relay on the path of a host's connections, for test_strangers.py: all that the host sends to other hosts passes it.
It changes a connection that has carried FIRST bytes, in each direction once; CHANGES times in all.
flip: one bit. repeat: it sends what it has just read twice. drop: it leaves that out. With FOLDER it also records what each
connection carries, at most 64 MB in all, in files NUMBER-HOST-PORT.up and .down.

    ip netns exec SPACE python3 altering_relay.py PORT flip|repeat|drop FIRST CHANGES [FOLDER]

Prints a line when it listens, and one for each change. nft must redirect connections without mark 7 to PORT."""

import itertools
import socket
import struct
import sys
import threading

SO_ORIGINAL_DST, MARK = 80, 7
port, how, first, left = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
folder, room, numbers = (sys.argv[5] if len(sys.argv) > 5 else None), 64 << 20, itertools.count()
lock = threading.Lock()


def altered(data, at):
    if how == "repeat":
        return data + data
    if how == "drop":
        return b""
    data = bytearray(data)
    data[at] ^= 4
    return data


def pump(source, sink, name):
    global left, room
    passed, changed = 0, False
    record = open(f"{folder}/{name}", "wb", buffering=0) if folder else None
    try:
        while data := source.recv(1 << 16):
            was = len(data)
            with lock:
                if record and room > 0:
                    room -= record.write(data)
                if not changed and left > 0 and passed + was > first >= passed:
                    data = altered(data, first - passed)
                    left, changed = left - 1, True
                    print("changed", flush=True)
            passed += was
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
    name = f"{next(numbers)}-{socket.inet_ntoa(ip)}-{to_port}"
    threading.Thread(target=pump, args=(called, caller, name + ".down"), daemon=True).start()
    pump(caller, called, name + ".up")


listener = socket.create_server(("0.0.0.0", port))
print("listens", flush=True)
while True:
    threading.Thread(target=relay, args=(listener.accept()[0],), daemon=True).start()
