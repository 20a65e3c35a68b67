"""Credentials that a service gives: of a web identity (STS), of a container, of an instance (IMDSv2). The bucket's server checks
every signature, so a request that succeeds was signed with what the service gave."""

import datetime
import http.server
import json
import os
import threading
import urllib.parse

from bucket import SECRET, TOKEN, BucketCase

KEY, ROLE, IDENTITY, SESSION = "AKIATESTACCESSKEY", "arn:aws:iam::1:role/train+er", "hidden.identity/token=", "hidden-imds-session"


class Service(http.server.ThreadingHTTPServer):
    """STS, a container's agent and IMDSv2 at once; each refuses what is not asked as it must be."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked, self.lives_s, self.fail = [], 3600, []  # fail: statuses of the next answers
        self.authorization = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        s, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        s.asked.append(f"{self.command} {self.path}")
        if s.fail:
            return self.answer(s.fail.pop(0))
        expires = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=s.lives_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        given = {"Code": "Success", "AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": expires}
        if self.command == "POST":
            form = dict(urllib.parse.parse_qsl(body, strict_parsing=True))
            if form.pop("WebIdentityToken") != IDENTITY or form.pop("RoleSessionName") not in ("simplescale", "mine"):
                return self.answer(400, b"<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>hidden</Message></Error></ErrorResponse>")
            assert form == {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": ROLE}, form
            members = "".join(f"<{k}>{v}</{k}>" for k, v in (("AccessKeyId", KEY), ("SecretAccessKey", SECRET), ("SessionToken", TOKEN),
                                                           ("Expiration", expires)))
            return self.answer(200, (f'<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                                     f"<AssumeRoleWithWebIdentityResult><Credentials>{members}</Credentials></AssumeRoleWithWebIdentityResult>"
                                     f"</AssumeRoleWithWebIdentityResponse>").encode())
        if self.path == "/container":
            if self.headers.get("Authorization", "") != s.authorization:
                return self.answer(403)
            return self.answer(200, json.dumps(given).encode())
        if self.command == "PUT" and self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") == "21600":
            return self.answer(200, SESSION.encode())
        if self.headers.get("X-aws-ec2-metadata-token") != SESSION:
            return self.answer(401)
        roles = "/latest/meta-data/iam/security-credentials/"
        if self.path == roles:
            return self.answer(200, b"the-role")
        self.answer(200, json.dumps(given).encode()) if self.path == roles + "the-role" else self.answer(404)

    do_GET = do_PUT = do_POST = handle_any


INSTANCE = ["PUT /latest/api/token", "GET /latest/meta-data/iam/security-credentials/", "GET /latest/meta-data/iam/security-credentials/the-role"]


class Credentials(BucketCase):
    def setUp(self):
        super().setUp()
        self.service = Service()
        self.addCleanup(lambda: (self.service.shutdown(), self.service.server_close()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            del os.environ[name]
        self.put(self.data, "data/tokens.bin")
        (self.folder / "identity").write_text(IDENTITY + "\n")
        self.web = dict(AWS_WEB_IDENTITY_TOKEN_FILE=str(self.folder / "identity"), AWS_ROLE_ARN=ROLE, AWS_ENDPOINT_URL_STS=self.service.url)
        self.container = dict(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{self.service.url}/container")
        self.instance = dict(AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=f"{self.service.url}/")

    def evaluate(self, *environments, code=0):
        """`evaluate --data=s3://…` with these variables; returns what the service was asked."""
        variables = {k: v for e in environments for k, v in e.items()}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        self.service.asked.clear()
        try:
            self.command("evaluate", self.model, "--data=s3://bucket/data/tokens.bin", "--samples=1", code=code)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        for secret in (SECRET, TOKEN, IDENTITY, SESSION, "hidden"):
            self.assertNotIn(secret, self.stderr)
        return list(self.service.asked)

    def test_each_service_gives_them_in_the_order_of_the_aws_tools(self):
        self.model = self.train("model", *self.flat, "--train.max_steps=1")
        own = dict(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN=TOKEN)
        self.assertEqual(self.evaluate(own, self.web, self.container, self.instance), [])
        self.assertEqual(self.evaluate(self.web, self.container, self.instance), ["POST /"])
        self.assertEqual(self.evaluate(self.web, dict(AWS_ROLE_SESSION_NAME="mine")), ["POST /"])
        self.assertEqual(self.evaluate(self.container, self.instance), ["GET /container"])
        self.assertEqual(self.evaluate(self.instance), INSTANCE)
        # The profile's keys come after the web identity, and before the machine's own.
        (self.folder / "credentials").write_text(f"[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\naws_session_token={TOKEN}\n")
        profile = dict(AWS_SHARED_CREDENTIALS_FILE=str(self.folder / "credentials"))
        self.assertEqual(self.evaluate(profile, self.web), ["POST /"])
        self.assertEqual(self.evaluate(profile, self.container, self.instance), [])
        # A profile may name the web identity, too.
        (self.folder / "config").write_text(f"[default]\nweb_identity_token_file = {self.folder}/identity\nrole_arn = {ROLE}\n")
        config = dict(AWS_CONFIG_FILE=str(self.folder / "config"), AWS_ENDPOINT_URL_STS=self.service.url)
        self.assertEqual(self.evaluate(config, self.container), ["POST /"])
        # The authorization of a container's agent: the file, which is read anew, before the variable.
        (self.folder / "authorization").write_text("hidden one\n")
        self.service.authorization = "hidden one"
        both = dict(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(self.folder / "authorization"), AWS_CONTAINER_AUTHORIZATION_TOKEN="hidden two")
        self.assertEqual(self.evaluate(self.container, both), ["GET /container"])
        self.service.authorization = "hidden two"
        self.evaluate(self.container, both, code=78)
        self.assertIn("AWS_CONTAINER_CREDENTIALS_FULL_URI: HTTP 403", self.stderr)
        self.assertEqual(self.evaluate(self.container, dict(AWS_CONTAINER_AUTHORIZATION_TOKEN="hidden two")), ["GET /container"])
        # No proxy of the environment sees them.
        proxy = dict(http_proxy="http://127.0.0.1:1", no_proxy="localhost", AWS_ENDPOINT_URL_S3=self.endpoint.replace("127.0.0.1", "localhost"))
        self.assertEqual(self.evaluate(self.instance, proxy), INSTANCE)
        self.assertEqual(self.evaluate(self.container, dict(AWS_CONTAINER_AUTHORIZATION_TOKEN="hidden two"), proxy), ["GET /container"])

    def test_what_a_service_refuses_is_named_and_what_may_pass_is_tried_again(self):
        self.model = self.train("model", *self.flat, "--train.max_steps=1")
        self.service.fail = [500, 429]
        self.assertEqual(self.evaluate(self.web), ["POST /"] * 3)
        self.service.fail = [503] * 3
        self.assertEqual(self.evaluate(self.container, code=74), ["GET /container"] * 3)
        self.assertIn("AWS_CONTAINER_CREDENTIALS_FULL_URI: HTTP 503", self.stderr)
        self.service.fail = [500]
        self.assertEqual(self.evaluate(self.instance, dict(AWS_METADATA_SERVICE_NUM_ATTEMPTS="2")), INSTANCE[:1] + INSTANCE)
        self.service.fail = [500]
        self.evaluate(self.instance, code=74)
        self.assertIn(f"the instance's metadata service {self.service.url}: HTTP 500", self.stderr)
        (self.folder / "identity").write_text("hidden other\n")
        self.assertEqual(self.evaluate(self.web, code=78), ["POST /"])
        self.assertIn("HTTP 400 InvalidIdentityToken", self.stderr)
        # The machine is no instance, or its instance has no role; or the user forbids to ask it.
        for fail in ([404], [405]):
            self.service.fail = list(fail)
            self.assertEqual(len(self.evaluate(self.instance, code=78)), 1)
            self.assertIn("there are no credentials", self.stderr)
        self.assertEqual(self.evaluate(self.instance, dict(AWS_EC2_METADATA_DISABLED="TRUE"), code=78), [])
        self.evaluate(dict(AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1"), code=78)
        self.assertIn("there are no credentials", self.stderr)

    def test_a_run_asks_again_before_they_expire_and_keeps_no_secret(self):
        os.environ.update(self.instance)
        options = [*self.flat, "--train.max_steps=4", "--checkpoint.disk_every_steps=1", "--data.source=s3://bucket/data/tokens.bin",
                   f"--data.cache_folder={self.folder}/cache", "--checkpoint.upload=s3://bucket/runs/run"]
        self.train("long", *options)
        once = self.service.asked.count(INSTANCE[2])
        self.service.asked.clear()
        self.service.lives_s = 240  # within the five minutes
        run = self.train("short", *options, "--checkpoint.upload=s3://bucket/runs/short")
        self.assertGreater(self.service.asked.count(INSTANCE[2]), once)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assert_no_secret(run, self.folder / "cache")
