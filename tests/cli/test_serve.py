"""`jaxformer serve`: OpenAI's client, plain HTTP, many at once, and clients that misbehave."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ports import free_port
from saved_folders import save_tiny
from tiny_models import random_parameters
from typed_commands import refused

from jaxformer.checkpoints.run_dir import prepared_data
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Config
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import DecoderConfig
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.more
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

import jaxformer  # noqa: E402
from jaxformer.server.addresses import bound, listen  # noqa: E402
from jaxformer.server.app import Limits, Server  # noqa: E402
from jaxformer.server.batches import Batcher  # noqa: E402
from jaxformer.server.requests import (  # noqa: E402
    _OPTIONS,
    _OTHERS,
    _WITHOUT_EFFECT,
    MOST_TEXTS,
    read_body,
)

CHAT = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder of bytes with a chat template."""
    home = tmp_path_factory.mktemp("served")
    (home / "texts").mkdir()
    (home / "texts" / "a.txt").write_text("The dog chased a dog. " * 40)
    model = DecoderConfig(vocab_size=320, num_layers=1, model_dim=32, num_heads=2, mlp_dim=48)
    data = DataConfig(
        source=TextFiles(str(home / "texts")), tokenizer=Bytes(), sequence_length=32, batch_size=2
    )
    write_run(home / "run", Config(model, data), 3, random_parameters(model, scale=0.3))
    prepared_data(data, home / "run")
    save(load(home / "run", dtype=None), home / "model")
    (home / "model" / "chat_template.jinja").write_text(CHAT)
    return home / "model"


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


class Running:
    """A server with its batcher in threads of this process."""

    def __init__(self, model, waiting=256, **limits):
        self.batcher = Batcher(model, 16, waiting)
        app = Server(model, "tiny", self.batcher, Limits(**limits)).app(local=False)
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.batcher.close()

    def post(self, path, body, kind="application/json"):
        """The status and the JSON of an answer."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        link.request("POST", path, data, {"Content-Type": kind})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def server(model):
    running = Running(model, body_bytes=20_000)
    yield running
    running.close()


def greedy(model, text, count):
    return jaxformer.generate(model, text, max_new_tokens=count, temperature=0)["texts"][0]


def test_completions_are_those_of_generate(server, model):
    for text in ("The dog", "A cat and a"):
        body = {"prompt": text, "max_tokens": 9, "temperature": 0, "logprobs": 0}
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        (choice,) = answer["choices"]
        assert choice["text"] == greedy(model, text, 9)
        found = jaxformer.generate(model, text, max_new_tokens=9, temperature=0)["log_probs"][0]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(found.tolist(), abs=1e-4)
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 9


def test_a_stop_string_ends_a_text(server, model):
    whole = greedy(model, "The dog", 12)
    stop = whole[4:6]
    body = {"prompt": "The dog", "max_tokens": 12, "temperature": 0, "stop": stop}
    _, answer = server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_client_of_openai(server, model):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    given = {"model": "tiny", "max_tokens": 10, "temperature": 0}
    messages = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(messages=messages, logprobs=True, **given)
    right = jaxformer.chat(model, messages, max_new_tokens=10, temperature=0)["content"]
    assert answer.choices[0].message.content == right
    assert len(answer.choices[0].logprobs.content) == 10
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = list(client.chat.completions.create(messages=messages, **options, **given))
    assert "".join(each.choices[0].delta.content for each in events[:-1]) == right
    assert events[-1].usage.completion_tokens == 10
    several = client.completions.create(
        model="tiny", prompt=["One", "Two"], n=2, seed=5, max_tokens=4, temperature=1.0
    )
    assert [each.index for each in several.choices] == [0, 1, 2, 3]
    again = client.completions.create(
        model="tiny", prompt="Two", n=2, seed=5, max_tokens=4, temperature=1.0
    )
    assert [x.text for x in again.choices] == [x.text for x in several.choices[2:]]
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="One")
    with pytest.raises(openai.BadRequestError, match="top_logprobs = 3"):
        client.chat.completions.create(messages=messages, top_logprobs=3, **given)


def test_many_clients_at_once(server, model):
    texts = [f"Text {number} " * (1 + number % 3) for number in range(64)]

    def ask(text):
        body = {"prompt": text, "max_tokens": 6, "temperature": 0}
        return server.post("/v1/completions", body)

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, texts))
    assert [status for status, _ in answers] == [200] * 64
    right = jaxformer.generate(model, texts[:8], max_new_tokens=6, temperature=0)["texts"]
    assert [answer["choices"][0]["text"] for _, answer in answers[:8]] == right


BODIES = [
    (b"{", 400, "JSON"),
    (b"[" * 9_000, 400, "JSON"),
    (b"[1]", 400, "JSON object"),
    (b" " * 30_000, 413, "20,000"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": [[1], []]}, 400, "prompt"),
    ({"prompt": [1, 320]}, 400, "0 to 319"),
    ({"prompt": [{"a": 1}]}, 400, "prompt"),
    ({"prompt": "a", "max_tokens": 100_000}, 400, "max_tokens"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature"),
    ({"prompt": "a", "temprature": 1}, 400, "temperature"),
    ({"prompt": "a", "stop": [""]}, 400, "stop"),
    ({"prompt": "a", "n": MOST_TEXTS + 1}, 400, "n = "),
    ({"prompt": "a", "stream": "yes"}, 400, "stream"),
    ({"prompt": "a", "best_of": 3}, 400, "best_of"),
    ({"prompt": "a", "logprobs": 5}, 400, "logprobs"),
]


@pytest.mark.parametrize(("body", "status", "words"), BODIES, ids=[str(x[0])[:30] for x in BODIES])
def test_malformed_bodies(body, status, words, server):
    found, answer = server.post("/v1/completions", body)
    assert (found, words in answer["error"]["message"]) == (status, True), answer


def test_other_types_paths_and_messages(server):
    assert server.post("/v1/completions", b"{}", "text/plain")[0] == 415
    assert server.post("/v1/nothing", {})[0] == 404
    for messages in ([], ["a"], [{"content": "a"}], [{"role": "user", "content": [{}]}]):
        assert server.post("/v1/chat/completions", {"messages": messages})[0] == 400
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    body = {"messages": parts, "max_tokens": 3, "temperature": 0}
    assert server.post("/v1/chat/completions", body)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_is_not_written_for(stream, server, monkeypatch):
    seen = []
    submit = server.batcher.submit
    monkeypatch.setattr(server.batcher, "submit", lambda each: seen.extend(each) or submit(each))
    slow = {"prompt": "The dog", "max_tokens": 300, "temperature": 0, "stream": stream}
    text = json.dumps(slow).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + text)
        while not seen:
            time.sleep(0.01)
    end = time.monotonic() + 30
    while not (seen[0].cancelled and seen[0].finished) and time.monotonic() < end:
        time.sleep(0.01)
    assert seen[0].cancelled
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_limits_of_time_and_of_waiting(model):
    running = Running(model, waiting=1, seconds=0.0)
    try:
        status, answer = running.post("/v1/completions", {"prompt": "a", "max_tokens": 50})
        assert (status, "time" in answer["error"]["message"]) == (504, True)
        status, answer = running.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 5})
        assert (status, "waiting" in answer["error"]["message"]) == (503, True)
    finally:
        running.close()


def test_what_a_body_asks_for(model):
    found = read_body({"prompt": [[5, 6], [7]], "n": 3, "stop": "x"}, model, False, 40)
    assert found.prompts == [[5, 6], [7]]
    assert found.count == 3
    assert [each.max_new_tokens for each in found.configs] == [40, 40]
    assert found.configs[0].stop_strings == ("x",)
    for body, error in (({}, DataError), ({"prompt": "a", "tools": [1]}, ConfigError)):
        with pytest.raises(error):
            read_body(body, model, False, 40)


VALUES = [
    *([1], ["a", 1], [[1], "a"], [10**30], [None], [[]], [], {}, {"a": 1}, "x", "", "\ud800"),
    *(True, 1.5, -1, 10**30, float("nan"), float("inf")),
]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", [*_OPTIONS, *_WITHOUT_EFFECT, *_OTHERS])
@pytest.mark.quick("*-False", "stream-*")
def test_any_value_of_an_option_is_read_or_refused(name, chat, model):
    refused = 0
    for value in VALUES:
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], name: value}
        try:
            assert read_body(body, model, chat, 40).prompts
        except (ConfigError, DataError):
            refused += 1
    assert refused or name in ("model", "user", "prompt" if chat else "messages")


def test_a_prompt_without_room_for_an_answer(tmp_path):
    limited = load(save_tiny("gpt2", tmp_path))
    most = limited.config.position.max_length
    found = read_body({"prompt": [[1, 2], [3] * 9]}, limited, False, most)
    assert [each.max_new_tokens for each in found.configs] == [most - 2, most - 9]
    for body in ({"prompt": [5] * most}, {"prompt": [5] * 2, "max_tokens": most - 1}):
        with pytest.raises(ConfigError, match="room for"):
            read_body(body, limited, False, most)


@pytest.mark.parametrize(
    ("options", "words"), [(("--port", "70000"), "--port"), (("--max-tokens", "0"), "--max-tokens")]
)
def test_wrong_options(options, words, folder, capsys):
    assert words in refused(capsys, "serve", folder, *options)


@pytest.mark.parametrize(
    ("host", "words"),
    [("127.0.0.1", "is in use"), ("192.0.2.1", "of this machine"), ("no.invalid", "no address")],
)
def test_an_address_that_cannot_be_had(host, words, folder, capsys, monkeypatch):
    monkeypatch.setattr("jaxformer.cli.inference.serve.load", None)  # refused before it is read
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, "serve", folder, "--host", host, "--port", port)
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_port_that_another_process_took_meanwhile():
    with bound("127.0.0.1", 0) as first:
        port = first[0].getsockname()[1]
        with bound("127.0.0.1", port) as second:
            listen(first)
            with pytest.raises(ConfigError, match=f"--port {port}: is in use"):
                listen(second)


def test_the_command_listens_on_the_loopback_address(folder):
    port = free_port()
    command = [sys.executable, "-m", "jaxformer", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert f"http://127.0.0.1:{port}/v1" in process.stdout.readline()
        statuses = []
        for host in ("localhost", "evil.example"):
            while True:
                link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                try:
                    link.request("GET", "/v1/models", headers={"Host": host})
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
            statuses.append(link.getresponse().status)
        assert statuses == [200, 400]
    finally:
        process.terminate()
        process.wait()
