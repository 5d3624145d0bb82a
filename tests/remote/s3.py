"""A few requests of S3, signed, with the standard library alone: what tests put into a store."""
import datetime
import hashlib
import hmac
import http.client
import re
import urllib.parse
import xml.sax.saxutils


class Bucket:
    def __init__(self, endpoint, name, key, secret):
        self.host, self.name, self.key, self.secret = endpoint.split("//")[1], name, key, secret
        self.connection = http.client.HTTPConnection(self.host)

    def request(self, method, name="", body=b"", query=()):
        """Status, headers, body."""
        path = "/" + urllib.parse.quote(f"{self.name}/{name}" if name else self.name,
                                        safe="/-_.~")
        words = urllib.parse.urlencode(sorted(query), quote_via=urllib.parse.quote)
        time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        names = "host;x-amz-content-sha256;x-amz-date"
        canonical = (f"{method}\n{path}\n{words}\nhost:{self.host}\nx-amz-content-sha256:{digest}\n"
                     f"x-amz-date:{time}\n\n{names}\n{digest}")
        scope = f"{time[:8]}/us-east-1/s3/aws4_request"
        text = (f"AWS4-HMAC-SHA256\n{time}\n{scope}\n"
                f"{hashlib.sha256(canonical.encode()).hexdigest()}")
        key = b"AWS4" + self.secret.encode()
        for part in (*scope.split("/"), text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        self.connection.request(method, path + ("?" + words if words else ""), body, {
            "x-amz-content-sha256": digest, "x-amz-date": time,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, "
                             f"SignedHeaders={names}, Signature={key.hex()}"})
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def done(self, *request):
        status, headers, body = self.request(*request)
        if status >= 300:
            raise RuntimeError(f"{request[:2]}: {status} {body[:300]!r}")
        return headers, body

    def create(self):
        self.done("PUT")
        return self

    def put(self, name, body):
        self.done("PUT", name, body)

    def put_folder(self, prefix, folder):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def get(self, name):
        return self.done("GET", name)[1]

    def keys_in(self, text):
        return [xml.sax.saxutils.unescape(key) for key in
                re.findall("<Key>(.*?)</Key>", text.decode())]

    def keys(self, prefix=""):
        """Of all objects (at most 1,000)."""
        return self.keys_in(self.done("GET", "", b"", (("list-type", "2"), ("prefix", prefix)))[1])

    def uploads(self, prefix=""):
        """The keys of objects whose parts are being sent."""
        return self.keys_in(self.done("GET", "", b"", (("uploads", ""), ("prefix", prefix)))[1])

    def files(self, prefix):
        return {key[len(prefix):].lstrip("/"): self.get(key) for key in self.keys(prefix)}

    def clear(self, prefix):
        for key in self.keys(prefix):
            self.done("DELETE", key)
