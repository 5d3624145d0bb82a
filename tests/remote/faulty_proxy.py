"""A proxy before a store, which fails as networks and stores do.

Each request gets the next word of a plan, or one by chance: ok; cut:N (the connection ends after N
bytes of the answer's body); late:SECONDS; a status (500, 503 SlowDown ...); reset; lost (what is
asked is done, but the answer never comes); or CODE/STATUS, an answer of S3 with that error.
"""
import http.client
import random
import socket
import socketserver
import struct
import threading
import time


class Proxy:
    """Runs in threads of this process. `plan` is a list of words, used up from its front."""

    def __init__(self, upstream, plan=(), chance=0.0, words=("reset", "cut:1000", "500", "503"),
                 seed=0):
        self.upstream, self.plan, self.chance, self.words = upstream, list(plan), chance, words
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.requests, self.body_bytes, self.faults = 0, 0, 0
        self.log, self.before = [], lambda count: None  # called with each request's number
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                while proxy.serve(self):
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # the client, or this proxy, ended the connection

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def next_word(self, line):
        with self.lock:
            self.requests += 1
            self.log.append(line)
            self.before(self.requests)
            if self.plan:
                word = self.plan.pop(0)
            else:
                fails = self.random.random() < self.chance
                word = self.random.choice(self.words) if fails else "ok"
            self.faults += word != "ok"
            return word

    def serve(self, handler):
        line = handler.rfile.readline().decode("latin-1")
        if not line.strip():
            return False
        method, path, _ = line.split()
        headers = {}
        while (each := handler.rfile.readline().decode("latin-1").strip()):
            name, value = each.split(":", 1)
            headers[name] = value.strip()
        length = next((int(v) for k, v in headers.items() if k.lower() == "content-length"), 0)
        body = handler.rfile.read(length)
        word = self.next_word(f"{method} {path} {headers.get('Range', '')}".strip())
        if word.startswith("late:"):
            time.sleep(float(word[5:]))
            word = "ok"
        if word == "reset":
            return self.reset(handler)
        if word not in ("ok", "lost") and not word.startswith("cut:"):
            return self.fail(handler, word)
        upstream = http.client.HTTPConnection(self.upstream.split("//")[1])
        # The store signs for the name that the client used.
        upstream.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        if word == "lost":
            answer.read()
            return self.reset(handler)
        return self.pass_on(handler, answer, int(word[4:]) if word != "ok" else None)

    def reset(self, handler):
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        return False

    def fail(self, handler, word):
        code, _, status = word.rpartition("/")
        text = f"<Error><Code>{code or 'SlowDown'}</Code></Error>".encode()
        handler.wfile.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\n\r\n".encode()
                            + text)
        return True

    def pass_on(self, handler, answer, cut):
        length = int(answer.headers.get("Content-Length", 0))
        handler.wfile.write(f"HTTP/1.1 {answer.status} {answer.reason}\r\n".encode())
        for name, value in answer.headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                handler.wfile.write(f"{name}: {value}\r\n".encode())
        if answer.headers.get("Transfer-Encoding"):
            whole = answer.read()
            length, parts = len(whole), iter((whole, b""))
        else:
            parts = iter(lambda: answer.read(1 << 18), b"")
        handler.wfile.write(f"Content-Length: {length}\r\n\r\n".encode())
        for part in parts:
            with self.lock:
                self.body_bytes += len(part if cut is None else part[:cut])
            if cut is not None and cut < len(part):
                handler.wfile.write(part[:cut])
                handler.connection.shutdown(socket.SHUT_RDWR)
                return False
            handler.wfile.write(part)
            cut = None if cut is None else cut - len(part)
        return True
