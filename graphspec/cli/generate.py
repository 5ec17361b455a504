"""``graphspec generate``: greedy text from the warmed reference engine."""

import click

from graphspec.cli.common import (
    FINE,
    cache_dir_option,
    config_option,
    json_option,
    print_json,
    set_option,
)
from graphspec.errors import EnvironmentProblem, Problem


@click.command()
@config_option
@set_option
@cache_dir_option
@json_option
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option("--no-speculation", is_flag=True, help="Decode one token a step, without drafts.")
def generate(
    config: str,
    settings: tuple[str, ...],
    cache_dir: str | None,
    as_json: bool,
    prompt: str,
    max_tokens: int,
    chat: bool,
    no_speculation: bool,
) -> int:
    """Greedy text from the warmed engine, with counts of accepted and drafted tokens."""
    import time

    from graphspec.api import load
    from graphspec.capture.warmup import make_ready
    from graphspec.engine.executor import Executor
    from graphspec.engine.generate import Generator
    from graphspec.engine.tokenizer import load_tokenizer

    spec = load(config, settings)
    if no_speculation:
        spec = spec.without_speculation()
    tokenizer = load_tokenizer(spec.model)
    ids = tokenizer.encode(tokenizer.chat(prompt) if chat else prompt)
    ready = make_ready(spec, cache_dir=cache_dir)
    if not isinstance(ready.source, Executor):
        raise EnvironmentProblem(
            Problem(
                where=f"program {spec.program}",
                found="a program with an executor of its own",
                wanted="the reference engine's, which generate drives",
                hint="use graphspec warmup with this config, and your engine to generate",
            )
        )
    generator = Generator(ready.source, ready.manager)
    began = time.perf_counter()
    (made,) = generator.generate([ids], max_tokens, tokenizer.stop_ids)
    seconds = time.perf_counter() - began
    text = tokenizer.decode(made.tokens)
    for finding in ready.report.findings:
        click.echo(f"finding: {finding}", err=True)
    if as_json:
        print_json(
            {
                "text": text,
                "tokens": list(made.tokens),
                "prompt_tokens": len(ids),
                "accepted": made.accepted,
                "drafted": made.drafted,
                "steps": made.steps,
                "seconds": round(seconds, 3),
                "compiled": ready.report.compiled,
                "routes": dict(generator.routes),
            }
        )
        return FINE
    click.echo(text)
    click.echo(
        f"{len(made.tokens)} tokens in {made.steps} steps, {seconds:.2f} s; "
        f"accepted {made.accepted} of {made.drafted} drafted; compiled {ready.report.compiled}",
        err=True,
    )
    return FINE
