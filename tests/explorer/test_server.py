"""The server answers with what the views say, and every mistake with a sentence."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from clearhead.explorer import attention as maps
from clearhead.explorer.classes import classes
from clearhead.explorer.contexts import contexts
from clearhead.explorer.curves import of_folder
from clearhead.explorer.depth import depth
from clearhead.explorer.evidence import evidence
from clearhead.explorer.inside import inside, tensor
from clearhead.explorer.lectures import lectures
from clearhead.explorer.positions import positions
from clearhead.explorer.running import Asked, run
from clearhead.explorer.server import app as application
from clearhead.explorer.server.answers import JobQueue
from clearhead.explorer.server.app import VIEWS, make_app
from clearhead.explorer.server.page import files_in
from clearhead.explorer.session import SENTENCES, Session
from clearhead.explorer.verdict import verdict

from .conftest import make_bundle
from .serving import served

HOME = "http://127.0.0.1:8765"
TEXT, TARGET = "the cat sleeps .", "le chat dort ."
PAIR = {"text": TEXT, "target": TARGET}
HEAD = {"kind": "decoder.cross", "layer": 1, "head": 2}
SENTENCES_OF_CAT = ["the cat sleeps", "who sees the cat ?"]

Get = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def sessions() -> dict[str, Session]:
    kinds = {"first": "encoder-decoder", "writer": "decoder", "judge": "encoder", "old": "recurrent"}
    return {name: Session(make_bundle(kind), name) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web") / "built"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    (folder / "assets" / "app-1a2b.js").write_text("export {};")
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "assets" / "out.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "up").symlink_to(folder.parent, target_is_directory=True)
    return folder


@pytest.fixture(scope="module")
def client(sessions: dict[str, Session], web: Path) -> Iterator[TestClient]:
    with TestClient(make_app(sessions, web), base_url=HOME) as made:
        yield made


@pytest.fixture(scope="module")
def home(sessions: dict[str, Session], web: Path) -> Iterator[str]:
    """The address of a real server."""
    with served(make_app(sessions, web)) as address:
        yield address


def plain(found: Any) -> Any:
    return json.loads(json.dumps(found))


ASKED: list[tuple[str, dict[str, Any], Callable[[Session], Any]]] = [
    ("run", {"text": TEXT}, lambda s: run(s, TEXT)),
    (
        "run",
        {"text": TEXT, "strategy": "sample", "temperature": 2, "top_k": 5, "seed": 9, "shown": 3},
        lambda s: run(s, TEXT, Asked(strategy="sample", temperature=2.0, top_k=5, seed=9, shown=3)),
    ),
    (
        "run",
        {"text": TEXT, "strategy": "beam", "beam": 3, "length_penalty": 0.5, "max_length": 6},
        lambda s: run(s, TEXT, Asked(strategy="beam", beam=3, length_penalty=0.5, max_length=6)),
    ),
    ("verdict", {"model": "judge", "text": TEXT}, lambda s: verdict(s, TEXT)),
    ("inside", PAIR, lambda s: inside(s, TEXT, TARGET)),
    (
        "tensor",
        {**PAIR, "name": "decoder.1.cross.weights", "head": 3},
        lambda s: tensor(s, TEXT, TARGET, name="decoder.1.cross.weights", head=3),
    ),
    ("attention", PAIR, lambda s: maps.attention(s, TEXT, TARGET)),
    ("attention/one", {**PAIR, **HEAD}, lambda s: maps.one(s, TEXT, TARGET, **HEAD)),
    (
        "attention/summary",
        {"text": TEXT, "kind": "encoder.self", "how": "rollout"},
        lambda s: maps.summary(s, TEXT, kind="encoder.self", how="rollout"),
    ),
    ("attention/classes", {"text": TEXT}, lambda s: classes(s, TEXT)),
    ("attention/classes", {}, lambda s: classes(s, texts=SENTENCES)),
    ("attention/evidence", {**PAIR, **HEAD, "row": 1}, lambda s: evidence(s, TEXT, TARGET, **HEAD, row=1)),
    ("positions", {}, lambda s: positions(s)),
    (
        "positions",
        {"schemes": ["rotary", "alibi"], "length": 12},
        lambda s: positions(s, ["rotary", "alibi"], 12),
    ),
    (
        "contexts",
        {"word": "cat", "sentences": SENTENCES_OF_CAT},
        lambda s: contexts(s, "cat", SENTENCES_OF_CAT),
    ),
    ("depth", PAIR, lambda s: depth(s, TEXT, TARGET)),
]


@pytest.mark.parametrize("path, body, view", ASKED, ids=[f"{p}-{i}" for i, (p, _, _) in enumerate(ASKED)])
def test_answers_are_the_views(
    client: TestClient, sessions: dict[str, Session], path: str, body: dict[str, Any], view: Any
) -> None:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == plain(view(sessions[body.get("model", "first")]))


def test_every_view_is_asked_above() -> None:
    assert {f"/api/{path}" for path, _, _ in ASKED} == {view.path for view in VIEWS}


def test_models_lectures_and_training(client: TestClient, sessions: dict[str, Session]) -> None:
    models = client.get("/api/models").json()["models"]
    assert [model["name"] for model in models] == ["first", "writer", "judge", "old"]
    first = sessions["first"]
    assert models[0] == {
        "name": "first",
        "family": "encoder-decoder",
        "task": "translate",
        "labels": [],
        "parameters": sum(one.numel() for one in first.model.parameters()),
        "layers": {"encoder": 2, "decoder": 2},
        "heads": 4,
        "width": 32,
        "vocabulary": first.config.vocabulary,
        "position": "sinusoidal",
        "norm": "post-layer",
        "sublayer": "norm(x + f(x))",
        "without": [],
        "has_source": True,
        "kinds": ["encoder.self", "decoder.self", "decoder.cross"],
        "limit": 512,
        "examples": list(SENTENCES),
        "config": plain(first.config.to_dict()),
    }
    assert [model["layers"] for model in models[1:3]] == [
        {"encoder": 0, "decoder": 2},
        {"encoder": 2, "decoder": 0},
    ]
    assert models[2]["labels"] == ["good", "bad", "so-so"]
    assert client.get("/api/lectures").json() == plain(lectures())
    assert client.get("/api/training").json() == plain(of_folder(None, first.bundle.metadata))
    assert client.get("/api/training?model=writer").json() == plain(
        of_folder(None, sessions["writer"].bundle.metadata)
    )


def test_training_and_examples_come_from_the_bundle_s_folder(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    line = {"kind": "train", "step": 10, "loss": 3.5, "rate": 0.1, "gradient_norm": 1.0, "flops": 5.0}
    (tmp_path / "training" / "log.jsonl").write_text(json.dumps(line) + "\n")
    session = Session(make_bundle(), "mine", tmp_path)
    session.bundle.metadata["examples"] = ["who sings ?", 7, "", "who sings ?"]
    with TestClient(make_app({"mine": session}), base_url=HOME) as client:
        assert client.get("/api/training").json() == plain(of_folder(tmp_path, session.bundle.metadata))
        assert client.get("/api/training").json()["there"]
        assert client.get("/api/models").json()["models"][0]["examples"] == ["who sings ?"]
        assert client.post("/api/attention/classes", json={}).json()["texts"] == 1


def test_the_demonstration_s_sentences_are_its_examples() -> None:
    session = Session(make_bundle(), "demo")
    session.bundle.metadata["recipe"] = {
        "data": {"train": [{"file": "runs/demo-en-fr-phrasebook/train.tsv"}]}
    }
    assert "I love deep learning." in session.examples


def test_another_model_by_name(client: TestClient, sessions: dict[str, Session]) -> None:
    asked = {"text": TEXT, "max_length": 8}
    found = client.post("/api/run", json={"model": "writer", **asked}).json()
    assert found == plain(run(sessions["writer"], TEXT, Asked(max_length=8)))
    assert found != client.post("/api/run", json=asked).json()


# -- mistakes ---------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, int, str]] = [
    ("run", {}, 422, "The setting 'text' is missing."),
    ("run", {"text": 5}, 422, "'text' is invalid"),
    ("run", {"text": "a", "beam": "4"}, 422, "'beam' is invalid"),
    ("run", {"text": "a", "beam": 4.5}, 422, "'beam' is invalid"),
    ("run", {"text": "a", "beam": True}, 422, "'beam' is invalid"),
    ("run", {"text": "a", "beam": 1000}, 422, "'beam' is invalid"),
    ("run", {"text": "a", "temperature": 0}, 422, "'temperature' is invalid"),
    ("run", {"text": "a", "strategy": "guess"}, 422, "'strategy' is invalid"),
    ("run", {"text": "a", "seed": 2**70}, 422, "'seed' is invalid"),
    ("run", {"text": "a", "tempreature": 1}, 422, "no setting 'tempreature'"),
    ("run", {"text": "a", "x" * 5000: 1}, 422, "no setting 'xxx"),
    ("run", {"text": "a" * 30_000}, 422, "'text' is invalid"),
    ("run", {"text": "cat " * 600}, 400, "at most 512"),
    ("run", {"text": ""}, 400, "nothing to translate"),
    ("run", [], 422, "Send a JSON object"),
    ("run", None, 422, "is invalid"),
    ("run", {"text": "a", "model": "fisrt"}, 404, "did you mean 'first'?"),
    ("run", {"text": "a", "model": "judge"}, 400, "does not write text"),
    ("inside", {"text": " "}, 400, "empty"),
    ("inside", {"text": "cat " * 600}, 400, "512"),
    ("tensor", {"text": TEXT, "name": "decoder.9.self.weights"}, 400, "decoder"),
    ("tensor", {"text": TEXT, "name": "decoder.0.self.weights", "head": 99}, 400, "head"),
    ("attention/one", {**PAIR, **HEAD, "layer": 7}, 400, "no layer 7"),
    ("attention/one", {**PAIR, **HEAD, "head": 7}, 400, "no head 7"),
    ("attention/one", {**PAIR, **HEAD, "layer": -1}, 422, "'layer' is invalid"),
    ("attention/one", {**PAIR, **HEAD, "kind": "encoder.cross"}, 422, "'kind' is invalid"),
    ("attention/one", {"model": "writer", "text": TEXT, **HEAD}, 400, "decoder.cross"),
    ("attention/evidence", {**PAIR, **HEAD, "row": 99}, 400, "row"),
    ("attention/classes", {"text": ""}, 400, "empty"),
    ("positions", {"schemes": ["rotery"]}, 400, "did you mean 'rotary'?"),
    ("positions", {"length": 10**6}, 422, "'length' is invalid"),
    ("positions", {"schemes": ["rotary"] * 9}, 422, "'schemes' is invalid"),
    ("contexts", {"word": "cat", "sentences": ["the cat"]}, 422, "'sentences' is invalid"),
    ("contexts", {"word": "zebra", "sentences": SENTENCES_OF_CAT}, 400, "zebra"),
    ("contexts", {"word": "cat", "sentences": [1, 2]}, 422, "'sentences.0' is invalid"),
    ("depth", {"model": "old", "text": TEXT}, 400, "recurrent"),
    ("nonsense", {}, 404, "no such endpoint"),
]


@pytest.mark.parametrize("path, body, status, part", WRONG)
def test_mistakes_are_sentences(client: TestClient, path: str, body: Any, status: int, part: str) -> None:
    refused(client.post(f"/api/{path}", json=body), status, part)


@pytest.mark.parametrize(
    "body, status",
    [
        (b"{", 400),
        (b"", 422),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"text": ' + b"9" * 5000 + b"}", 400),
        (b'{"text": "a", "temperature": NaN}', 422),
        (b'{"text": "a", "temperature": 1e999}', 422),
        (b'{"text": "\\ud800 the cat"}', 422),
        (b'{"\\ud800": 1, "text": "a"}', 422),
        (b'{"text": "a", "text": 5}', 422),
    ],
    ids=range(10),
)
def test_broken_json_is_a_sentence(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/api/run", content=body, headers={"content-type": "application/json"})
    refused(answer, status, "")


def test_other_ways_to_ask_wrongly(client: TestClient) -> None:
    refused(
        client.post("/api/run", content=b'{"text": "a"}', headers={"content-type": "text/plain"}), 422, "JSON"
    )
    refused(client.get("/api/training?model=nobody"), 404, "no model 'nobody'")
    refused(client.get("/api"), 404, "")
    for method, path, allowed in (
        ("GET", "/api/run", "POST"),
        ("DELETE", "/api/run", "POST"),
        ("OPTIONS", "/api/run", "POST"),
        ("POST", "/api/models", "GET"),
        ("POST", "/", "GET"),
    ):
        answer = client.request(method, path)
        refused(answer, 405, allowed)
        assert answer.headers["allow"] == allowed


def refused(answer: httpx.Response, status: int, part: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    sentence = answer.json()["error"]
    assert part in sentence
    assert sentence[0].isupper()
    assert sentence.endswith((".", "?"))
    assert len(sentence) < 400
    assert "\n" not in sentence


def test_a_defect_is_a_sentence_and_not_a_traceback(
    sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("the engine is on fire")

    monkeypatch.setattr(application, "run", fail)
    app = make_app(sessions)
    with TestClient(app, base_url=HOME, raise_server_exceptions=False) as client:
        answer = client.post("/api/run", json={"text": TEXT})
        refused(answer, 500, "internal error")
        assert "fire" not in answer.text
        assert client.post("/api/depth", json=PAIR).status_code == 200


def test_numbers_that_json_does_not_know_are_null(
    sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"low": float("-inf"), "all": [1.0, (float("nan"),)], "text": "∞"}
    monkeypatch.setattr(application, "run", lambda *_: odd)
    with TestClient(make_app(sessions), base_url=HOME) as client:
        answer = client.post("/api/run", json={"text": TEXT})
        assert answer.json() == {"low": None, "all": [1.0, [None]], "text": "∞"}


# -- many at once -----------------------------------------------------------------------------------


def test_many_questions_at_once_are_answered_alike(sessions: dict[str, Session], home: str) -> None:
    asked = [(text, name) for text in SENTENCES_OF_CAT for name in ("first", "writer")] * 4
    bodies = [{"text": text, "model": name, "max_length": 8} for text, name in asked]
    with httpx.Client(base_url=home, timeout=60) as client:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda body: client.post("/api/run", json=body), bodies))
        for (text, name), answer in zip(asked, answers, strict=True):
            assert answer.status_code == 200
            assert answer.json() == plain(run(sessions[name], text, Asked(max_length=8)))


def test_a_slow_question_holds_up_nobody_else(
    sessions: dict[str, Session], web: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()

    def slow(session: Session, text: str, asked: Asked) -> Any:
        if session.name == "first":
            going.wait(20)
        return {"by": session.name}

    monkeypatch.setattr(application, "run", slow)
    with served(make_app(sessions, web)) as home, httpx.Client(base_url=home, timeout=30) as client:
        with ThreadPoolExecutor(40) as pool:
            waiting = [pool.submit(client.post, "/api/run", json={"text": "a"}) for _ in range(32)]
            time.sleep(0.3)
            try:
                assert client.get("/").status_code == 200
                assert client.get("/api/lectures").status_code == 200
                full = client.post("/api/depth", json=PAIR)
                refused(full, 429, "busy")  # the line is full
                assert int(full.headers["retry-after"]) >= 1  # what the page waits before it asks again
            finally:
                going.set()
            statuses = sorted(one.result().status_code for one in waiting)
        assert set(statuses) == {200, 429}
        assert client.post("/api/depth", json=PAIR).status_code == 200  # and it is empty again


def test_the_desk_gives_up_after_a_while_and_always_frees_its_places(sessions: dict[str, Session]) -> None:
    desk = JobQueue(sessions, waiting=2, patience=0.05)
    holding, done = threading.Event(), threading.Event()

    def hold(_: Session) -> dict[str, Any]:
        holding.set()
        done.wait(10)
        return {}

    thread = threading.Thread(target=desk.ask, args=("first", hold))
    thread.start()
    holding.wait(10)
    try:
        with pytest.raises(HTTPException, match="busy") as trouble:
            desk.ask("first", lambda _: {})
        assert trouble.value.status_code == 429
        assert desk.ask("writer", lambda session: {"name": session.name}) == {"name": "writer"}
    finally:
        done.set()
        thread.join()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            desk.ask("first", lambda _: {"never": 1 // 0})
    assert desk.ask(None, lambda session: {"name": session.name}) == {"name": "first"}


# -- the page ---------------------------------------------------------------------------------------


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    assert client.get("/index.html").content == page.content
    script = client.get("/assets/app-1a2b.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert client.head("/").status_code == 200
    for answer in (page, script, client.get("/api/models"), client.get("/nowhere")):
        rules = answer.headers["content-security-policy"]
        assert "default-src 'self'" in rules
        assert "script-src" not in rules
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/assets/..%5c..%5csecret.txt",
        "/assets/out.txt",  # a link to a file outside
        "/up/secret.txt",  # a link to a folder outside
        "/up/built/index.html",
        "//etc/passwd",
        "/%00",
        "/assets/%00/../app-1a2b.js",
        "/" + "a" * 5000,
        "/assets",
        "/assets/",
        "/file:///etc/passwd",
    ],
)
def test_nothing_outside_the_folder_can_be_read(home: str, path: str) -> None:
    host, port = home.removeprefix("http://").split(":")
    answer = raw(host, int(port), f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"secret" not in answer.split(b"\r\n\r\n", 1)[1]
    assert b"error" in answer


def raw(host: str, port: int, request: str) -> bytes:
    """A request as it is written down: no client that tidies its path."""
    with socket.create_connection((host, port), timeout=10) as line:
        line.sendall(request.encode())
        found = b""
        while part := line.recv(65536):
            found += part
    return found


def test_files_in_a_folder(web: Path, tmp_path: Path) -> None:
    assert set(files_in(web)) == {"/index.html", "/assets/app-1a2b.js"}
    assert files_in(tmp_path / "absent") == {}


def test_a_page_that_was_not_built(sessions: dict[str, Session], tmp_path: Path) -> None:
    with TestClient(make_app(sessions, tmp_path / "absent"), base_url=HOME) as client:
        refused(client.get("/"), 404, "run 'make web'")
        assert client.get("/api/models").status_code == 200


def test_the_description_names_every_question(client: TestClient) -> None:
    described = client.get("/api/openapi.json").json()
    assert set(described["paths"]) == {
        *(f"/api/{path}" for path, _, _ in ASKED),
        "/api/models",
        "/api/lectures",
        "/api/training",
        "/api/picture",
    }
    for path in described["paths"].values():
        for operation in path.values():
            assert operation["summary"].endswith(".")
            assert set(operation["responses"]) >= {"200", "400", "403", "404", "413", "422", "429"}
