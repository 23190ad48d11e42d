"""A small Hugging Face hub on the loopback address: repositories in memory, and faults."""

import base64
import contextlib
import hashlib
import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants

LARGE = (".safetensors", ".msgpack", ".bin")
TOKEN = "hf_thetokenofthesetests"


def git_hash(text):
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


@dataclass
class Repository:
    """Files by branch or tag; each has a commit."""

    branches: dict[str, dict[str, bytes]]
    private: bool = False
    gated: bool = False
    hashes: dict[str, str] = field(default_factory=dict)
    """Hashes and sizes that the hub claims, where they are not those of the file."""
    sizes: dict[str, int] = field(default_factory=dict)

    def commit(self, branch):
        text = json.dumps([[n, git_hash(f)] for n, f in sorted(self.branches[branch].items())])
        return hashlib.sha1(f"{branch} {text}".encode()).hexdigest()

    def files(self, revision):
        found = [b for b in self.branches if revision in (b, self.commit(b))]
        return (self.branches[found[0]], self.commit(found[0])) if found else None

    def entry(self, name, text):
        size = self.sizes.get(name, len(text))
        if not name.endswith(LARGE):
            return {"size": size, "blobId": self.hashes.get(name, git_hash(text))}
        sha256 = self.hashes.get(name, hashlib.sha256(text).hexdigest())
        lfs = {"sha256": sha256, "size": size, "pointerSize": 130}
        return {"size": size, "blobId": git_hash(sha256.encode()), "lfs": lfs}


class HubServer(ThreadingHTTPServer):
    """The hub; a context manager that serves while it is open.

    Attributes:
        repositories: By name.
        requests: (method, path, Authorization header) of every request.
        cuts: Of a body that is sent next: after how many bytes the connection is closed.
        hangups: Methods, "GET": the next such request is not answered, the connection is closed.
        broken: What answers all requests: a status, or None.
        redirects: Old names of repositories.
        stored: What was uploaded, by sha256.
        commits: The message and the operations of each commit.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.requests, self.cuts = {}, [], []
        self.hangups, self.broken = [], None
        self.redirects, self.stored, self.commits = {}, {}, []
        self.connections = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name, folder, **options):
        """Puts the files of a folder on the branch main of a new repository."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }
        self.repositories[name] = Repository({"main": files}, **options)
        return self.repositories[name]

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.go_away()

    def go_away(self):
        """Ends the server, with the connections that are kept open."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """Clients of these tests go away in the middle."""


@contextlib.contextmanager
def serving(cache, monkeypatch):
    """Yields a hub that ``huggingface_hub`` asks, with its cache in a folder."""
    with HubServer() as server:
        values = {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # uploads would go to a store that there is none of
            "HF_TOKEN_PATH": str(cache / "token"),
        }
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections.append(self.connection)

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._answer(self._read)

    def do_POST(self):
        self._answer(self._write)

    do_HEAD, do_PUT = do_GET, do_POST

    def _answer(self, action):
        self.path, self._query = unquote(urlsplit(self.path).path), urlsplit(self.path).query
        token = self.headers.get("Authorization")
        self.server.requests.append((self.command, self.path, token))
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        else:
            self.body = self.rfile.read(length)
        with contextlib.suppress(ValueError):
            self.server.hangups.remove(self.command)
            self.close_connection = True
            return None
        if self.server.broken is not None:
            return self._send(self.server.broken)
        if token not in (None, f"Bearer {TOKEN}"):
            return self._send(401, error="Invalid credentials in Authorization header")
        return action(self.path.strip("/").split("/"))

    def _chunks(self):
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    # Reading --------------------------------------------------------------------------------------

    def _read(self, parts):
        if parts[0] == "cdn":
            return self._send_file(self.server.stored[parts[1]])
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        words = ("revision", "tree") if api else ("resolve",)
        place = next((n for n, part in enumerate(parts) if part in words), len(parts))
        name, revision, rest = "/".join(parts[:place]), "main", ""
        if place < len(parts):
            tail = "/".join(parts[place + 1 :])
            revision, _, rest = tail.partition("/")
            if tail.startswith("refs/"):
                revision, rest = tail, ""
        if name in self.server.redirects:
            target = self.path.replace(name, self.server.redirects[name], 1)
            query = f"?{self._query}" if self._query else ""
            return self._send(307, headers={"Location": target + query})
        found = self._revision(name, revision)
        if found is None:
            return None
        repository, files, commit = found
        if not api:
            return self._resolve(repository, files, commit, rest)
        if parts[place : place + 1] == ["tree"]:
            return self._send_json([self._branch(repository, *item) for item in files.items()])
        blobs = "blobs" in parse_qs(self._query)
        siblings = [
            {"rfilename": n} | (repository.entry(n, text) if blobs else {})
            for n, text in files.items()
        ]
        return self._send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings})

    def _revision(self, name, revision):
        """The repository and the files of a commit; None where an error was sent."""
        repository, token = self.server.repositories.get(name), self.headers.get("Authorization")
        if repository is None or (repository.private and token is None):
            self._send(401 if token is None else 404, "RepoNotFound", "Repository not found")
        elif (found := repository.files(revision)) is None:
            self._send(404, "RevisionNotFound", "Invalid rev id: " + revision)
        else:
            return (repository, *found)
        return None

    def _branch(self, repository, name, text):
        entry = repository.entry(name, text)
        found = {"type": "file", "path": name, "size": entry["size"], "oid": entry["blobId"]}
        if "lfs" in entry:
            found["lfs"] = entry["lfs"] | {"oid": entry["lfs"]["sha256"]}
        return found

    def _resolve(self, repository, files, commit, name):
        head = {"X-Repo-Commit": commit}
        if repository.gated:
            return self._send(403, "GatedRepo", "Access to model is restricted", head)
        if name not in files:
            return self._send(404, "EntryNotFound", "Entry not found", head)
        entry, text = repository.entry(name, files[name]), files[name]
        if "lfs" not in entry:
            return self._send_file(text, head | {"ETag": f'"{entry["blobId"]}"'})
        sha256 = entry["lfs"]["sha256"]
        self.server.stored[sha256] = text
        head |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(entry["size"])}
        # Another host, as the hub's, so that the token must not go there.
        host = self.server.url.replace("127.0.0.1", "localhost")
        return self._send(302, headers=head | {"Location": f"{host}/cdn/{sha256}"})

    # Writing --------------------------------------------------------------------------------------

    def _write(self, parts):
        if parts[0] == "lfs":
            self.server.stored[parts[1]] = self.body
            return self._send(200)
        if self.headers.get("Authorization") is None:
            return self._send(401, error="Unauthorized")
        if self.path == "/api/repos/create":
            return self._create(json.loads(self.body))
        if self.path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(self.body))
        if parts[:2] != ["api", "models"]:
            return self._send_json({"errors": [], "warnings": []})
        name, verb, revision = "/".join(parts[2:4]), parts[4], "/".join(parts[5:])
        repository = self.server.repositories.get(name)
        if repository is None:
            return self._send(404, "RepoNotFound", "Repository not found")
        if verb == "branch":
            known = revision in repository.branches
            repository.branches.setdefault(revision, dict(repository.branches["main"]))
            return self._send(409 if known else 200)
        if verb == "preupload":
            files = json.loads(self.body)["files"]
            for each in files:
                mode = "lfs" if each["path"].endswith(LARGE) else "regular"
                each |= {"uploadMode": mode, "shouldIgnore": False}
            return self._send_json({"files": files})
        return self._commit(repository, name, revision)

    def _create(self, wanted):
        name = f"{wanted['organization'] or 'someone'}/{wanted['name']}"
        if name.startswith("foreign/"):
            return self._send(403, error="You don't have the rights to create a model there")
        page = {"url": f"{self.server.url}/{name}", "name": name}
        if name in self.server.repositories:
            return self._send_json(page, 409)
        private = wanted.get("visibility") == "private"
        self.server.repositories[name] = Repository({"main": {}}, private=private)
        return self._send_json(page)

    def _batch(self, wanted):
        objects = [
            each | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}}
            for each in wanted["objects"]
        ]
        return self._send_json({"transfer": "basic", "objects": objects})

    def _commit(self, repository, name, revision):
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        files = repository.branches[revision]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        summary = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        self.server.commits.append((name, revision, summary))
        commit = repository.commit(revision)
        self._send_json(
            {"commitOid": commit, "commitUrl": f"{self.server.url}/{name}/commit/{commit}"}
        )

    # Answers --------------------------------------------------------------------------------------

    def _send(self, status, code=None, error=None, headers=None, body=b""):
        self.send_response(status)
        named = {"X-Error-Code": code, "X-Error-Message": error, "Content-Length": len(body)}
        for name, value in {**named, **(headers or {})}.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def _send_json(self, value, status=200):
        head = {"Content-Type": "application/json"}
        self._send(status, headers=head, body=json.dumps(value).encode())

    def _send_file(self, text, headers=None):
        status, head = 200, dict(headers or {}) | {"Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            head["Content-Range"] = f"bytes {start}-{len(text) - 1}/{len(text)}"
            status, text = 206, text[start:]
        if self.command == "GET" and self.server.cuts:
            end = self.server.cuts.pop(0)
            head["Content-Length"] = len(text)
            self._send(status, headers=head, body=text[:end])
            self.close_connection = True
            return
        self._send(status, headers=head | {"Content-Length": len(text)}, body=text)
