"""An S3 server for end-to-end tests: moto, behind a proxy of our own (tests/runtime/object_store/s3_server.py) that checks
every signature and injects faults."""

import json
import os
import pathlib
import subprocess
import urllib.request

from common import PYTHON, ROOT, Case, needs

SERVER = ROOT / "tests/runtime/object_store/s3_server.py"
SECRET, TOKEN = "test/secret+key/0123456789", "test-session-token//=="


@needs("moto", "flask_cors")
class BucketCase(Case):
    """AWS_* name a server of these tests, with a bucket "bucket" that is empty when a test begins."""

    @classmethod
    def setUpClass(cls):
        server = subprocess.Popen([PYTHON, "-B", SERVER, "--bucket", "bucket"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(lambda: (server.stdin.close(), server.wait(30), server.stdout.close()))
        cls.endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"

    def setUp(self):
        super().setUp()
        self.control("POST", "reset")
        before = {name: os.environ.get(name) for name in os.environ if name.startswith("AWS_")}
        self.addCleanup(lambda: ([os.environ.pop(n) for n in list(os.environ) if n.startswith("AWS_")], os.environ.update(before)))
        for name in before:
            del os.environ[name]
        os.environ.update(AWS_ACCESS_KEY_ID="AKIATESTACCESSKEY", AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN=TOKEN,
                          AWS_ENDPOINT_URL_S3=self.endpoint, AWS_EC2_METADATA_DISABLED="true",
                          AWS_SHARED_CREDENTIALS_FILE="/nonexistent", AWS_CONFIG_FILE="/nonexistent")
        self.flat = ["--train.global_batch_size=8", "--train.min_learning_rate=3e-3", "--train.warmup_iters=0", *self.layout(1, 1)]

    def control(self, method, path, document=None):
        request = urllib.request.Request(f"{self.endpoint}/_control/{path}", json.dumps(document).encode() if document is not None else None,
                                         method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def put(self, path, key):
        """Creates or replaces the object `key` of the bucket; of a folder, one object for each file."""
        for file in [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file()):
            name = key if path.is_file() else f"{key}/{file.name}"
            request = urllib.request.Request(f"{self.endpoint}/_control/object/bucket/{name}", file.read_bytes(), method="PUT")
            urllib.request.urlopen(request, timeout=60).close()

    def faults(self, *rules):
        self.control("PUT", "faults", rules)

    def requests(self, part):
        return [request for request, _ in json.loads(self.control("GET", "log")) if part in request]

    def assert_no_secret(self, *places):
        for place in places:
            for file in pathlib.Path(place).rglob("*"):
                if file.is_file():
                    text = file.read_bytes()
                    self.assertNotIn(SECRET.encode(), text, file)
                    self.assertNotIn(TOKEN.encode(), text, file)
