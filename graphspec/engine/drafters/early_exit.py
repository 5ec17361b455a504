"""Early exit: the target's own first layers and its head as the draft model, without weights of its own.

A draft folder says so by one field of its config.json, ``early_exit_of``, the checkpoint that it is the beginning of. The
rest of the file is that checkpoint's config with fewer ``num_hidden_layers``; `write_early_exit` writes it.
"""

import json
import os

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.weights import Weights, load_weights
from graphspec.errors import Problem, SpecError
from graphspec.resolve.checkpoint import locate_checkpoint, read_checkpoint

FIELD = "early_exit_of"


def write_early_exit(folder: str, target: str, layers: int) -> str:
    """Writes the config of a draft that is the first `layers` layers of `target`, and returns the folder.

    Raises `SpecError` for fewer than one layer, or no fewer than the target has.
    """
    config = dict(read_checkpoint(target))
    most = config.get("num_hidden_layers")
    if not isinstance(most, int) or not 1 <= layers < most:
        raise SpecError(
            Problem(
                where="write_early_exit layers",
                found=str(layers),
                wanted=f"at least 1 and fewer than the {most} layers of {target}",
            )
        )
    config.update({"num_hidden_layers": layers, FIELD: target})
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    return folder


def draft_weights(context: DraftContext) -> Weights:
    """The draft's weights: its own, or views of the target's where it is an early exit of it. Nothing is copied then."""
    model, target = context.model, context.weights
    exit_of = context.stated(FIELD)
    if exit_of is None:
        return load_weights(model, context.spec.device)
    source = context.spec.model.source
    if locate_checkpoint(str(exit_of), f"speculative.model {FIELD}") != locate_checkpoint(source):
        raise SpecError(
            Problem(
                where="speculative.model",
                found=f"an early exit of {exit_of}",
                wanted=f"one of the engine's own target, {source}",
                hint="write_early_exit makes the folder for a target",
            )
        )
    return Weights(
        embedding=target.embedding,
        layers=target.layers[: model.num_hidden_layers],
        final_norm=target.final_norm,
        w_head=target.w_head,
    )
