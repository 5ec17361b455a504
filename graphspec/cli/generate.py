"""``graphspec generate``: text from the warmed reference engine."""

from typing import Any

import click

from graphspec.cli.common import (
    FINE,
    cache_dir_option,
    config_option,
    json_option,
    print_json,
    set_option,
)


@click.command()
@config_option
@set_option
@cache_dir_option
@json_option
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option(
    "--temperature", type=float, default=0.0, help="0, the default, takes the best token."
)
@click.option("--top-k", type=int, default=0, help="Sample from this many best tokens; 0: all.")
@click.option("--top-p", type=float, default=1.0, help="Sample from this share of probability.")
@click.option("--min-p", type=float, default=0.0, help="Least share of the best probability.")
@click.option("--seed", type=int, help="Makes a sampled text repeatable.")
@click.option("--stop", multiple=True, help="End before this text. Repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end of text.")
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
    **wishes: Any,
) -> int:
    """Text from the warmed engine, with counts of accepted and drafted tokens."""
    import time

    from graphspec.api import load
    from graphspec.engine.llm import LLM
    from graphspec.engine.sampling import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, **wishes)
    spec = load(config, settings)
    if no_speculation:
        spec = spec.without_speculation()
    llm = LLM(spec, cache_dir=cache_dir)
    ids = llm.tokenizer.encode(llm.tokenizer.chat(prompt) if chat else prompt)
    began = time.perf_counter()
    (made,) = llm.generate([ids], params)
    seconds = time.perf_counter() - began
    for finding in llm.report.findings:
        click.echo(f"finding: {finding}", err=True)
    if as_json:
        print_json(
            {
                "text": made.text,
                "tokens": list(made.tokens),
                "finished": made.finished.value,
                "prompt_tokens": len(ids),
                "accepted": made.accepted,
                "drafted": made.drafted,
                "steps": made.steps,
                "seconds": round(seconds, 3),
                "compiled": llm.report.compiled,
                "routes": dict(llm.engine.routes),
            }
        )
        return FINE
    click.echo(made.text)
    click.echo(
        f"{len(made.tokens)} tokens in {made.steps} steps, {seconds:.2f} s; "
        f"accepted {made.accepted} of {made.drafted} drafted; compiled {llm.report.compiled}",
        err=True,
    )
    return FINE
