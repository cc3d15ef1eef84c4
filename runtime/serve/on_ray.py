"""The server as a deployment of Ray Serve: replicas on a cluster, each with its own copy of the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from headrace.errors import InputError
from headrace.runtime.serve.limits import Limits


def ray_application(
    models: Mapping[str, str | Path],
    *,
    target: str | None = None,
    trust: bool | None = None,
    limits: Limits | None = None,
    keys: Iterable[str] = (),
    origins: Iterable[str] = (),
    **deployment: Any,
) -> Application:
    """What `ray.serve.run` starts: all routes of `headrace serve`, answered by any of the replicas.

        ray.serve.run(headrace.ray_application({"minilm": "OUT"}, num_replicas=2, ray_actor_options={"num_gpus": 1}))

    A replica reads the folders where it starts, so that nothing large travels; one that dies is replaced by Ray, which
    answers what it was at with an error. `/metrics` counts what one replica did.

    Args:
        models: what `save` or `export_onnx` wrote, by the names that clients use; at that path on every node.
        target: as of `headrace.load`; None takes the one that each was saved for.
        trust: run models that were not saved on the replica's machine: they are programs.
        limits: of each replica. A replica is given as many requests at once as its queue holds.
        keys: of which a request must bring one, where there are any.
        origins: pages of which browsers may ask; `*` stands for all.
        deployment: options of `ray.serve.deployment`.

    Raises:
        InputError: there is no model.
    """
    if not models:
        raise InputError("There is no model to serve. Name one or more.")
    folders, held = {name: str(folder) for name, folder in models.items()}, limits or Limits()
    options: dict[str, Any] = {"trust": trust} | ({} if target is None else {"target": target})
    allowed: dict[str, Any] = {"keys": tuple(keys), "origins": tuple(origins)}

    def made() -> Any:
        from headrace.runtime.artifact.saved_model import load
        from headrace.runtime.serve.app import make_app

        opened = {name: load(folder, **options) for name, folder in folders.items()}
        for model in opened.values():
            model.engine.warm_up()
        return make_app(opened, held, **allowed)

    given: dict[str, Any] = {"name": "headrace", "max_ongoing_requests": held.queue} | deployment
    return serve.deployment(**given)(serve.ingress(made)()).bind()
