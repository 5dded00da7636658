"""The explorer as a web app: one address for each question, each answered by one view.

`make_app` takes sessions and the folder of the built page. A question goes through the guard (who asks), its
schema (what is asked) and the desk (whose turn it is) to a view, and comes back as JSON or as a sentence.
Views are plain functions run in a pool of threads, so that a slow one holds up nobody but its own model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from clearhead.explorer import attention as maps
from clearhead.explorer.classes import classes
from clearhead.explorer.contexts import contexts
from clearhead.explorer.curves import training
from clearhead.explorer.depth import depth
from clearhead.explorer.evidence import evidence
from clearhead.explorer.inside import inside, tensor
from clearhead.explorer.lectures import lectures
from clearhead.explorer.positions import positions
from clearhead.explorer.running import Asked, run
from clearhead.explorer.server import schema
from clearhead.explorer.server.answers import PROBLEMS, Answer, JobQueue, answer_failures
from clearhead.explorer.server.guard import Guard
from clearhead.explorer.server.listing import examples_of, listed
from clearhead.explorer.server.page import Page
from clearhead.explorer.session import Session
from clearhead.explorer.verdict import verdict

BUILT = Path(__file__).resolve().parent.parent / "built"  # what `make web` makes

Plain = dict[str, Any]


@dataclass(frozen=True)
class View:
    """A question that is posted, and who answers it."""

    path: str
    asks: type[schema.Ask]
    answer: Callable[[Session, Any], Plain]
    about: str


def _settings(ask: schema.Ask, *names: str) -> Plain:
    """The named fields of a request, as arguments."""
    return {name: getattr(ask, name) for name in names}


def _run(session: Session, ask: schema.Run) -> Plain:
    return run(session, ask.text, Asked(**ask.model_dump(exclude={"model", "text"})))


CLASSES = "/api/attention/classes"
VIEWS = (
    View("/api/run", schema.Run, _run, "A text written token by token, and what each step thought."),
    View(
        "/api/verdict",
        schema.Verdict,
        lambda session, ask: verdict(session, ask.text),
        "What a classifier or a tagger says of a text, and which words carried it.",
    ),
    View(
        "/api/inside",
        schema.Pair,
        lambda session, ask: inside(session, ask.text, ask.target),
        "The architecture as boxes and arrows, and which tensors each box holds.",
    ),
    View(
        "/api/tensor",
        schema.Tensor,
        lambda session, ask: tensor(session, ask.text, ask.target, **_settings(ask, "name", "head")),
        "One tensor of one text.",
    ),
    View(
        "/api/attention",
        schema.Pair,
        lambda session, ask: maps.attention(session, ask.text, ask.target),
        "All maps of attention.",
    ),
    View(
        "/api/attention/one",
        schema.Head,
        lambda session, ask: maps.one(
            session, ask.text, ask.target, **_settings(ask, "kind", "layer", "head")
        ),
        "The map of one head.",
    ),
    View(
        "/api/attention/summary",
        schema.Summary,
        lambda session, ask: maps.summary(
            session, ask.text, ask.target, **_settings(ask, "kind", "how", "layer")
        ),
        "Many heads as one map: their mean, rollout, or the alignment of source and target.",
    ),
    View(
        "/api/attention/evidence",
        schema.Evidence,
        lambda session, ask: evidence(
            session, ask.text, ask.target, **_settings(ask, "kind", "layer", "head", "row")
        ),
        "Whether a map explains what the model wrote: three controls.",
    ),
    View(
        "/api/positions",
        schema.Positions,
        lambda session, ask: positions(session, ask.schemes, ask.length, ask.width),
        "Schemes of positions, drawn and checked.",
    ),
    View(
        "/api/contexts",
        schema.Contexts,
        lambda session, ask: contexts(session, ask.word, ask.sentences),
        "One word in several sentences.",
    ),
    View(
        "/api/depth",
        schema.Pair,
        lambda session, ask: depth(session, ask.text, ask.target),
        "The residual stream, and what the model would say after each layer.",
    ),
)


def make_app(
    sessions: Mapping[str, Session],
    web: Path = BUILT,
    *,
    host: str = "127.0.0.1",
    folders: Mapping[str, Path] | None = None,
) -> FastAPI:
    """The app for these sessions, by name.

    `host` is what the server is bound to: it may be asked for by that name. `folders` say where a session's
    bundle lies, and with it the records of its training.
    """
    app = FastAPI(
        title="clearhead explorer",
        description="What a model does with a text, exactly. Tensors are base64 of little-endian float32.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # such pages load their scripts from elsewhere
        redoc_url=None,
        responses=PROBLEMS,
        default_response_class=Answer,
    )
    desk, places = JobQueue(sessions), dict(folders or {})
    views = (*VIEWS, _counting(places))
    for view in views:
        _post(app, desk, view)
    _gets(app, desk, places)
    answer_failures(app)
    methods = {view.path: "POST" for view in views}
    gets = ("/api/models", "/api/lectures", "/api/training", "/api/openapi.json")
    app.mount("/", Page(web, {**methods, **dict.fromkeys(gets, "GET")}))
    app.add_middleware(Guard, host=host)
    return app


def _counting(folders: Mapping[str, Path]) -> View:
    """Attention by class; without a text, over the sentences that are known of the model."""

    def answer(session: Session, ask: schema.Classes) -> Plain:
        several = examples_of(session, folders.get(session.name)) if ask.text is None else None
        return classes(session, ask.text, ask.target, texts=several)

    return View(CLASSES, schema.Classes, answer, "Attention by the class of what is looked at.")


def _post(app: FastAPI, desk: JobQueue, view: View) -> None:
    def answer(ask: Any) -> Answer:
        found = desk.ask(ask.model, lambda session: view.answer(session, ask))
        return Answer(found, headers={"cache-control": "no-store"})

    answer.__annotations__["ask"] = view.asks  # what the framework reads the request by
    name = view.path.removeprefix("/api/").replace("/", "-")
    app.add_api_route(view.path, answer, methods=["POST"], summary=view.about, operation_id=name, name=name)


def _gets(app: FastAPI, desk: JobQueue, folders: Mapping[str, Path]) -> None:
    quiet = {"cache-control": "no-store"}

    @app.get("/api/models", summary="The models that can be asked.", operation_id="models")
    def answer_models() -> Answer:
        found = [listed(one, folders.get(name)) for name, one in desk.sessions.items()]
        return Answer({"models": found}, headers=quiet)

    @app.get("/api/lectures", summary="The lectures' worked examples.", operation_id="lectures")
    def answer_lectures() -> Answer:
        return Answer(lectures(), headers=quiet)

    @app.get("/api/training", summary="The curves of a model's training.", operation_id="training")
    def answer_training(model: schema.Name | None = None) -> Answer:
        found = desk.ask(model, lambda session: training(session, folders.get(session.name)))
        return Answer(found, headers=quiet)
