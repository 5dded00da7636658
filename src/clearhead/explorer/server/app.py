"""The explorer as a web app: one address for each question, each answered by one view.

`make_app` takes sessions and the folder of the built page. A question goes through the guard (who asks), its
schema (what is asked) and the job queue (whose turn it is) to a view, and returns as JSON or as a sentence.
Views are plain functions run in a thread pool, so a slow one blocks only its own model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import Body, FastAPI, Query
from starlette.responses import Response

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
from clearhead.explorer.server import schema
from clearhead.explorer.server.answers import PROBLEMS, Answer, JobQueue, answer_failures
from clearhead.explorer.server.guard import Guard
from clearhead.explorer.server.page import Page
from clearhead.explorer.server.pictures import Pictures, in_an_address
from clearhead.explorer.session import Session
from clearhead.explorer.sublayers import sublayer_formula
from clearhead.explorer.verdict import verdict
from clearhead.explorer.words import Plain

PICTURE = "/api/picture"
BUILT = Path(__file__).resolve().parent.parent / "built"  # what `make web` builds


class View(NamedTuple):
    """A question sent by POST, and the view that answers it: the fields of the request are its arguments."""

    path: str
    asks: type[schema.Ask]
    answer: Callable[..., Plain]
    about: str


def _run(session: Session, text: str, **settings: Any) -> Plain:
    return run(session, text, Asked(**settings))


VIEWS = (
    View("/api/run", schema.Run, _run, "A text written token by token, with the distribution at each step."),
    View(
        "/api/verdict",
        schema.Verdict,
        verdict,
        "What a classifier or a tagger predicts for a text, and which words the prediction depends on.",
    ),
    View(
        "/api/inside",
        schema.Pair,
        inside,
        "The architecture as boxes and arrows, and which tensors each box holds.",
    ),
    View("/api/tensor", schema.Tensor, tensor, "One tensor of one text."),
    View("/api/attention", schema.Pair, maps.attention, "All attention maps."),
    View("/api/attention/one", schema.Head, maps.one, "The attention map of one head."),
    View(
        "/api/attention/summary",
        schema.Summary,
        maps.summary,
        "Many heads as one map: their mean, rollout, or the alignment of source and target.",
    ),
    View(
        "/api/attention/evidence",
        schema.Evidence,
        evidence,
        "Whether a map explains what the model wrote: three controls.",
    ),
    View("/api/positions", schema.Positions, positions, "Position schemes, drawn and checked."),
    View("/api/contexts", schema.Contexts, contexts, "One word in several sentences."),
    View(
        "/api/depth",
        schema.Pair,
        depth,
        "The residual stream, and what the model would say after each layer.",
    ),
    View("/api/attention/classes", schema.Classes, classes, "Attention by the class of what is looked at."),
)


def make_app(sessions: Mapping[str, Session], web: Path = BUILT, *, host: str = "127.0.0.1") -> FastAPI:
    """The app for these sessions, by name. Clients may also use the name of the `host` it is bound to."""
    app = FastAPI(
        title="clearhead explorer",
        description="What a model does with a text, exactly. Tensors are base64 of little-endian float32.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # such pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=PROBLEMS,
        default_response_class=Answer,
    )
    desk, kept = JobQueue(sessions), Pictures()
    for view in VIEWS:
        _post(app, desk, view, kept)
    _gets(app, desk)
    _pictures(app, desk, kept)
    answer_failures(app)
    app.router.default = Page(web)  # everything that is not a question
    app.add_middleware(Guard, host=host, files=PICTURE)
    return app


def _post(app: FastAPI, desk: JobQueue, view: View, kept: Pictures) -> None:
    def answer(ask: Any) -> Answer:
        settings = ask.model_dump(exclude={"model"})

        def question(session: Session) -> Plain:
            if session.family == "vision" and settings.get("text"):
                settings["text"] = kept.whole(session, settings["text"])
            return view.answer(session, **settings)

        return Answer(desk.ask(ask.model, question))

    answer.__annotations__["ask"] = view.asks  # the framework reads the request by it
    name = view.path.removeprefix("/api/").replace("/", "-")
    app.add_api_route(view.path, answer, methods=["POST"], summary=view.about, operation_id=name, name=name)


def _gets(app: FastAPI, desk: JobQueue) -> None:
    @app.get("/api/models", summary="The models that this server has loaded.", operation_id="models")
    def answer_models() -> Answer:
        return Answer({"models": [_listed(session) for session in desk.sessions.values()]})

    @app.get("/api/lectures", summary="The lectures' worked examples.", operation_id="lectures")
    def answer_lectures() -> Answer:
        return Answer(lectures())

    @app.get("/api/training", summary="A model's training curves.", operation_id="training")
    def answer_training(model: schema.Name | None = None) -> Answer:
        return Answer(desk.ask(model, lambda one: of_folder(one.folder, one.bundle.metadata)))


def _pictures(app: FastAPI, desk: JobQueue, kept: Pictures) -> None:
    @app.post(
        PICTURE,
        summary="A picture file as a model reads it: as text, or by its name.",
        operation_id="picture",
    )
    def answer_picture(
        file: Annotated[str, Query(max_length=1000, description="The name of the file.")],
        model: schema.Name | None = None,
        content: Annotated[bytes, Body(media_type="application/octet-stream")] = b"",  # of an empty file
    ) -> Answer:
        return Answer(desk.ask(model, lambda session: {"text": kept.read(session, content, file)}))

    png: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}

    @app.get(
        PICTURE,
        summary="A picture as a model reads it.",
        operation_id="picture-png",
        response_class=Response,
        responses=png,
    )
    def answer_png(text: schema.Text, model: schema.Name | None = None) -> Response:
        content = kept.png(desk.session(model), text)  # at once: the model itself has nothing to do with it
        return Response(content, media_type="image/png", headers={"cache-control": "no-store"})


def _listed(session: Session) -> Plain:
    """One model, for the page's choice of models and for its headings."""
    config, layers, recurrent = session.config, session.layers, session.family == "recurrent"
    normed = not recurrent and config.norm.kind != "none"
    return {
        "name": session.name,
        "family": session.family,
        "task": session.bundle.metadata.get("task"),
        "labels": session.bundle.metadata.get("labels") or [],
        "parameters": sum(one.numel() for one in session.model.parameters()),
        "layers": {"encoder": layers.get("encoder", 0), "decoder": layers.get("decoder", 0)},
        "heads": session.heads[0],
        "width": config.width,
        "vocabulary": config.vocabulary,
        "position": "none" if recurrent else config.position.name,
        "norm": f"{config.norm.place}-{config.norm.kind}" if normed else "none",
        "sublayer": sublayer_formula(config),
        "without": config.taken_out,
        "has_source": session.has_source,
        "kinds": session.kinds,
        "limit": session.limit,
        "examples": [in_an_address(one) for one in session.examples],
        "config": config.to_dict(),
    }
