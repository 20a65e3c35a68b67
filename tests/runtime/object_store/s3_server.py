#!/usr/bin/env python3
"""An S3 server for tests: moto, behind a proxy of our own that checks signatures and injects faults.

    s3_server.py [--region REGION] [--bucket NAME] [--tls FILE]

Prints its port when it is ready, with the bucket, and ends when its standard input does. moto keeps the objects and answers like S3:
multipart uploads, ranges, conditional puts, lists. It checks neither signatures nor hashes, so the proxy does: it signs
every request again with botocore, the library of Amazon's own tools, from the decoded path and query, and compares. The
only credentials are ACCESS_KEY, SECRET_KEY and, if the request has one, TOKEN.

Requests to /_control are for tests:
    PUT  /_control/faults   a JSON list of rules, which replaces the earlier ones
    GET  /_control/log      a JSON list of [request, HTTP status]; status 0: it gets no answer
    PUT  /_control/object/BUCKET/KEY   creates or replaces an object, without a signature
    DELETE  the same        removes it
    POST /_control/reset    leaves the bucket of --bucket without objects, the log empty, and no rule

A rule: {"match": REGEX of "METHOD /bucket/key?query", "kind": KIND, "skip": N, "times": N}. The first `skip` requests that
match pass, the next `times` (default: all) have the fault:
    status    answers "status" (default 503) with the error "code" (default SlowDown)
    body      answers 200 with the text "body"
    refuse    closes the connection, and does not carry the request out
    lost      carries the request out, and closes the connection without an answer
    truncate  answers with the right length, and closes the connection after half of the body
    short     answers a range with the first half of its bytes, and says so
    slow      waits "ms" before it answers
    hang      never answers
    unconditional  leaves out the conditions, as some servers do
    random    one of the above but hang and slow, for "percent" of the requests, by "seed"
"""
import argparse
import datetime
import hashlib
import ipaddress
import json
import logging
import random
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import ThreadedMotoServer

ACCESS_KEY, SECRET_KEY, TOKEN = "AKIATESTACCESSKEY", "test/secret+key/0123456789", "test-session-token//=="
AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8}/([a-z0-9-]+)/s3/aws4_request), "
                           r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})")
KINDS = ("status", "refuse", "lost", "truncate", "short")


def quoted(text):
    return urllib.parse.quote(text, safe="-_.~")


def wrong_signature(method, target, headers, body, region):
    """(HTTP status, code) of what S3 would say of a request's credentials, or None."""
    found = AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    if not found:
        return 403, "AccessDenied"
    key, _, signed_region, names, signature = found.groups()
    if key != ACCESS_KEY:
        return 403, "InvalidAccessKeyId"
    if signed_region != region:
        return 400, "AuthorizationHeaderMalformed"
    token = headers.get("x-amz-security-token")
    if token not in (None, TOKEN):
        return 400, "ExpiredToken"
    names = names.split(";")
    must = {name.lower() for name in headers if name.lower().startswith("x-amz-")} | {"host"}
    if not must <= set(names):
        return 403, "AccessDenied"
    sha256 = headers.get("x-amz-content-sha256", "")
    if sha256 != hashlib.sha256(body).hexdigest():
        return 400, "XAmzContentSHA256Mismatch"
    path, _, query = target.partition("?")
    path = urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~")
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    query = "&".join(sorted(f"{quoted(name)}={quoted(value)}" for name, value in pairs))
    request = AWSRequest(method, f"http://{headers['Host']}{path}" + (f"?{query}" if query else ""),
                         headers={name: headers[name] for name in names}, data=body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, token), "s3", region)
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return None if expected == signature else (403, "SignatureDoesNotMatch")


class Faults:
    """The rules, and which request meets which one. Any thread."""

    def __init__(self):
        self.mutex, self.rules, self.log = threading.Lock(), [], []
        self.released = threading.Event()  # ends what hangs

    def set(self, rules, forget=False):
        with self.mutex:
            if forget:
                self.log.clear()
            self.rules = [dict(rule, seen=0, random=random.Random(rule.get("seed", 0))) for rule in rules]
            self.released.set()
            self.released = threading.Event()

    def meet(self, request):
        """(kind, rule) for a request, or (None, {}), and the event that ends a hang."""
        with self.mutex:
            for rule in self.rules:
                if not re.search(rule["match"], request):
                    continue
                rule["seen"] += 1
                if not rule.get("skip", 0) < rule["seen"] <= rule.get("skip", 0) + rule.get("times", 1 << 60):
                    continue
                kind = rule["kind"]
                if kind == "random":
                    if rule["random"].random() * 100 >= rule["percent"]:
                        continue
                    kind = rule["random"].choice(KINDS)
                return kind, rule, self.released
            return None, {}, self.released

    def add(self, request, status):
        with self.mutex:
            self.log.append([request, status])


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    faults = region = backend = bucket = None  # of the whole server

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body, length=None):
        self.note(status)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def note(self, status):
        """Writes the log before the client can know that its request is over."""
        if not self.path.startswith("/_control/"):
            self.faults.add(f"{self.command} {urllib.parse.unquote(self.path)}", status)

    def error(self, status, code):
        body = f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{code} &lt;injected&gt;</Message></Error>".encode()
        self.answer(status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else body)
        return True

    def control(self, body):
        if self.path.startswith("/_control/object/"):
            connection = HTTPConnection("127.0.0.1", self.backend, timeout=60)
            # moto replaces an object only for a request that looks signed.
            connection.request(self.command, self.path.removeprefix("/_control/object"), body=body, headers={
                "Host": "127.0.0.1", "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20200101/{self.region}/s3/aws4_request"})
            return self.answer(connection.getresponse().status, [], b"")
        if self.command == "PUT":
            self.faults.set(json.loads(body))
            return self.answer(200, [], b"")
        if self.command == "POST":
            self.faults.set([], forget=True)
            for request in (("POST", "/moto-api/reset"), ("PUT", f"/{self.bucket}")):
                connection = HTTPConnection("127.0.0.1", self.backend, timeout=60)
                connection.request(*request, headers={"Host": "127.0.0.1"})
                assert connection.getresponse().status == 200
            return self.answer(200, [], b"")
        with self.faults.mutex:
            text = json.dumps(self.faults.log).encode()
        self.answer(200, [], text)

    def forward(self, body):
        connection = HTTPConnection("127.0.0.1", self.backend, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "expect")}
        connection.request(self.command, self.path, body=body, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        length = int(answer.headers.get("Content-Length", len(data))) if self.command == "HEAD" else len(data)
        connection.close()
        return answer.status, answer.getheaders(), data, length

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/_control/"):
            return self.control(body)
        if not self.with_fault(f"{self.command} {urllib.parse.unquote(self.path)}", body):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def with_fault(self, request, body):
        """Answers the request, or returns False: the connection must be closed."""
        wrong = wrong_signature(self.command, self.path, self.headers, body, self.region)
        if wrong:
            return self.error(*wrong)
        kind, rule, released = self.faults.meet(request)
        if kind == "status":
            return self.error(rule.get("status", 503), rule.get("code", "SlowDown"))
        if kind == "body":
            self.answer(200, [("Content-Type", "application/xml")], rule["body"].encode())
            return True
        if kind in ("refuse", "hang"):
            self.note(0)
            if kind == "hang":
                released.wait(300)
            return False
        if kind == "slow":
            time.sleep(rule["ms"] / 1000)
        if kind == "unconditional":
            del self.headers["If-Match"], self.headers["If-None-Match"]
        status, headers, data, length = self.forward(body)
        if kind == "lost":
            self.note(0)
            return False
        if kind == "truncate":
            self.answer(status, headers, data[:len(data) // 2], length)
            self.wfile.flush()
            return False
        if kind == "short" and status == 206 and len(data) > 1:
            begin, _, total = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", dict(headers)["Content-Range"]).groups()
            data = data[:len(data) // 2]
            headers = [(name, value) for name, value in headers if name != "Content-Range"]
            headers.append(("Content-Range", f"bytes {begin}-{int(begin) + len(data) - 1}/{total}"))
            length = len(data)
        self.answer(status, headers, data, length)
        return True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, *_):
        pass  # clients that give up


def make_certificate(path):
    """Writes a key and a certificate for 127.0.0.1 that it signs itself, for a day. Returns the path."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
                   .not_valid_after(now + datetime.timedelta(days=1))
                   .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
                   .add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256()))
    with open(path, "wb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--bucket", help="to create")
    parser.add_argument("--tls", help="serve HTTPS, with a new certificate and key that are written to this file")
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    Proxy.faults, Proxy.region, Proxy.backend, Proxy.bucket = Faults(), options.region, moto.get_host_and_port()[1], options.bucket
    if options.bucket:
        connection = HTTPConnection("127.0.0.1", Proxy.backend, timeout=60)
        connection.request("PUT", f"/{options.bucket}", headers={"Host": "127.0.0.1"})
        assert connection.getresponse().status == 200
    server = Server(("127.0.0.1", 0), Proxy)
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(make_certificate(options.tls))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
