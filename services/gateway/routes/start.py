"""First steps: the questions and models that can be used, and a test alert."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from lookout.administration.second_models import second_models
from lookout.models.questions import listed_questions
from lookout.services.gateway.guard import Administrator, Operator, Viewer
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.gateway_pb2 import TestAlert, TrainedQuestion, TrainedQuestions
from lookout.v1.notifications_pb2 import ListSecondModelsResponse
from lookout.wire import EVERY_CAMERA, tenant_of

router = APIRouter(prefix="/v1", tags=["first steps"])
_WATCH = "test-alert"


@router.get("/questions", **route(TrainedQuestions))
def trained_questions(request: Request, principal: Viewer) -> Response:
    """List the questions that the fleet's model was trained for, and how well it answers each."""
    folder = parts_of(request).settings.model_dir
    listed = None if folder is None else listed_questions(folder)
    return answer(
        TrainedQuestions(
            listed=listed is not None,
            questions=[
                TrainedQuestion(
                    wordings=question.wordings,
                    rendered=question.f1.get("rendered"),
                    real=question.f1.get("real"),
                )
                for question in listed or ()
            ],
        )
    )


@router.get("/second-models", **route(ListSecondModelsResponse))
def list_second_models(request: Request, principal: Operator) -> Response:
    """List the second models that a watch with `verify` may name. A watch that names none asks the first."""
    settings = parts_of(request).settings
    models = None if settings.notify is None else second_models(settings, settings.notify)
    return answer(models or ListSecondModelsResponse())


@router.post("/test-alert", **route(TestAlert))
def send_test_alert(request: Request, principal: Administrator, asked: Asked) -> Response:
    """Write a test alert, which every active notification delivers, whatever its filters are.

    The response is sent once the gateway has read the alert back from alerts.v1. `/v1/notifications` shows
    the deliveries' state.
    """
    if not principal.unlimited:
        raise ProblemError(403, "a test alert needs an administrator of every camera and tenant")
    identity = uuid.uuid4().hex
    event = Alert(
        id=identity,
        incident=identity,
        kind=Alert.KIND_TEST,
        camera=EVERY_CAMERA,
        watch=_WATCH,
        question="Test alert",
        tenant=tenant_of(""),
        text=[f"sent by {principal.actor}; nothing happened."],
    )
    event.start.FromMilliseconds(round(time.time() * 1000))
    event.end.CopyFrom(event.start)
    parts = parts_of(request)
    parts.writes.note(principal, asked, entry("alert.test", identity))
    if not parts.writes.await_places(parts.writes.tell(event)):
        raise ProblemError(
            503,
            "the test alert was written to alerts.v1, but the gateway did not read it back: see Operations",
        )
    return answer(TestAlert(id=identity, time=event.end))
