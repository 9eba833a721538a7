"""`hoplite select`: chooses a library for each operation and size in this environment, and shows why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite.sizes import check_size
from hoplite.tools.cli.ending import ending_in_order
from hoplite.tools.cli.options import duration_option, json_option, said
from hoplite.tools.cli.output import Notes, print_json, print_table, stepping
from hoplite.tools.progress import Progress
from hoplite_bench.select import cache, deciding
from hoplite_bench.select.exports import FORMS
from hoplite_bench.select.plan import ARCHITECTURES, LAYERS
from hoplite_bench.select.request import BARE, BUDGET_S, CONTAINERS, KNOWN, OF_LAYER, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.select.plan import Candidate, Plan

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _words(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))


@click.command()
@click.option("--arch", type=click.Choice(list(ARCHITECTURES)), required=True, help="Parameter server, or all-reduce.")
@click.option("--bytes", "size", default="64MiB", show_default=True, help="Size of each rank's array.")
@click.option("-n", "--ranks", type=click.IntRange(1), default=4, show_default=True, help="Number of ranks.")
@click.option("--hosts", type=FILE, help="Measure between the hosts in this file, one rank on each.")
@click.option("--rsh", default="ssh", show_default=True, help="Remote shell for the hosts of --hosts.")
@click.option(
    "--layer", type=click.Choice(LAYERS), default=LAYERS[0], show_default=True, help="Libraries, or PyTorch backends."
)
@click.option(
    "--container",
    type=click.Choice(CONTAINERS),
    default=BARE,
    show_default=True,
    help="Container set-up of the ranks on this machine.",
)
@click.option("--ops", default="", callback=_words, help=f"More operations, separated by commas: {', '.join(KNOWN)}.")
@click.option(
    "--systems",
    default="",
    callback=_words,
    help="Only these candidates, separated by commas.  "
    f"[default: all of {', '.join(name for names in OF_LAYER.values() for name in names)}]",
)
@duration_option("--budget", f"Time for measurements, such as 2m.  [default: {BUDGET_S:g}s]")
@click.option(
    "--require-failures/--no-require-failures",
    default=None,
    help="Accept only libraries that pass checks with a killed and a frozen peer.  [default: for --arch ps]",
)
@duration_option("--timeout", "Time for everything, such as 5m.  [default: no limit]")
@click.option("--refresh", is_flag=True, help="Measure again, even if there is a plan for this environment.")
@click.option("--install", is_flag=True, help="Install missing libraries from package indexes.")
@click.option("--explain", is_flag=True, help="Also show all sizes, the environment, and advice.")
@click.option("--export", "form", type=click.Choice(list(FORMS)), help="Also write the plan as files of this form.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for --export.")
@click.option("--check", type=FILE, multiple=True, help="Compare the plan with rows of hoplite study or bench.")
@json_option("Print one JSON object instead of tables.")
@click.pass_context
def select(
    context: click.Context,
    /,
    *,
    arch: str,
    size: str,
    ranks: int,
    hosts: Path | None,
    rsh: str,
    layer: str,
    container: str,
    ops: tuple[str, ...],
    systems: tuple[str, ...],
    budget: float | None,
    timeout: float | None,
    require_failures: bool | None,
    refresh: bool,
    install: bool,
    explain: bool,
    form: str | None,
    out: Path | None,
    check: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Choose the fastest library for each operation in this environment.

    Measures the installed libraries within a budget, and excludes those that crash, hang or return wrong results. For
    --arch ps, a library must also pass checks with a killed and a frozen peer, once per environment. The plan is
    cached until the environment changes.

    \b
    Examples:
      hoplite select --arch allreduce --bytes 1MiB -n 2
      hoplite select --arch ps --bytes 1GiB -n 4 --explain
      hoplite select --arch allreduce --layer torch --json
      hoplite select --arch allreduce --hosts hosts.txt -n 8 --systems openmpi --export openmpi --out plans
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    if bool(form) != (out is not None):
        raise click.UsageError("--export FORM and --out DIR belong together: set both")
    if said(context, "rsh") and hosts is None:
        raise click.UsageError("--rsh applies to real hosts: add --hosts FILE")
    request = Request(
        arch=arch,
        nbytes=check_size("--bytes", size),
        ranks=ranks,
        layer=layer,
        container=container,
        hosts=hosts,
        ops=ops,
        budget_s=BUDGET_S if budget is None else budget,
        require_failures=require_failures,
        install=install,
        systems=systems,
    )
    rows = _rows(check)
    plan = _decide(request, refresh=refresh, rsh=rsh, timeout=float("inf") if timeout is None else timeout)
    if as_json:
        print_json(plan.to_json() | ({"regret": _regrets(plan, rows, request)} if check else {}))
    else:
        _print(plan, every_size=explain)
        if explain:
            _explain(plan, request)
        if check:
            _print_regrets(_regrets(plan, rows, request))
    if form is not None and out is not None:
        # After the plan is printed, because a form may not be able to express it.
        _export(plan, form, out)


def _decide(request: Request, *, refresh: bool, rsh: str, timeout: float) -> Plan:
    """Reads the plan or measures; shows the progress."""
    from hoplite.errors import HopliteError

    def warn(text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    steps: dict[type[HopliteError], str] = {HopliteError: "hoplite select --help"}
    with ending_in_order(), stepping(steps), Progress("selecting") as progress:
        return deciding.decide(
            request,
            refresh=refresh,
            timeout=timeout,
            rsh=rsh,
            notify=lambda text: progress.notify(click.unstyle(text)),
            warn=warn,
        )


def _print(plan: Plan, *, every_size: bool) -> None:
    """Prints the candidates and the choice."""
    from hoplite_bench import words

    notes = Notes()
    shown = [one for one in plan.candidates if every_size or one.nbytes == plan.nbytes]
    columns = ["op", *(["size"] if every_size else []), "library", "variant", "time", "±", "state", "reason"]
    print_table(columns, [_line(one, notes, every_size=every_size) for one in shown], whole=2)
    notes.print()
    click.echo("")
    rules = []
    for op in plan.ops:
        low = 0
        for rule in (rule for rule in plan.rules if rule.op == op):
            high = words.size(rule.below) if rule.below is not None else "any size"
            settings = " ".join(f"{name}={value}" for name, value in rule.settings.items())
            rules.append([op, words.size(low) if low else "-", high, rule.system, rule.variant, settings])
            low = rule.below or 0
    print_table(["choice for", "from", "below", "library", "variant", "settings"], rules, whole=2)
    source = f"from the cache, {cache.root() / 'select'}" if plan.cached else "measured now"
    click.echo(f"plan {plan.fingerprint}: {source}", err=True)


def _line(one: Candidate, notes: Notes, *, every_size: bool) -> list[str]:
    from hoplite_bench import words

    seconds = words.seconds(one.seconds) if one.seconds is not None else "-"
    spread = f"{one.spread:.0%}" if one.spread is not None else "-"
    # Long reasons, such as the last output of a process, are below the table.
    reason = one.reason if len(one.reason) <= REASON_MAX else notes.mark(one.reason)
    size = [words.size(one.nbytes)] if every_size else []
    return [one.op, *size, one.library, one.variant, seconds, spread, one.state, reason]


REASON_MAX = 60


def _explain(plan: Plan, request: Request) -> None:
    """Prints the environment and what would make the operations faster."""
    from hoplite_bench.select import fingerprint
    from hoplite_bench.select.advice import advice

    parts = fingerprint.environment(cache.root() / "bench")
    click.echo("")
    print_table(["environment", "value"], [[name, _text(value)] for name, value in parts.items()], whole=1)
    click.echo("")
    for sentence in advice(plan, request, parts) or ["no advice: nothing here is known to slow these operations"]:
        click.echo(f"- {sentence}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {one}" for name, one in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value) or "-"


def _export(plan: Plan, form: str, out: Path) -> None:
    from hoplite.tools.cli.output import fail_with
    from hoplite_bench.select.exports import DoesNotFit, export

    with stepping({DoesNotFit: "hoplite select --help"}):
        files = export(plan, form)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (out / name).write_bytes(content)
            click.echo(f"wrote {out / name}", err=True)
    except OSError as error:
        fail_with(f"can't write the export to {out}: {error.strerror}", "set another --out")


def _rows(files: tuple[Path, ...]) -> list[Row]:
    """Reads the rows of --check, before anything is measured."""
    from hoplite_bench.row import BadRow, read

    with stepping({BadRow: "set files of hoplite study or hoplite bench"}):
        return read(files)


def _regrets(plan: Plan, rows: Sequence[Row], request: Request) -> list[dict[str, object]]:
    from hoplite_bench.select.regret import BadRows, regrets

    names = [words[0] for words in request.host_lines[: request.ranks]]
    with stepping({BadRows: "hoplite study --help"}):
        return [dataclasses.asdict(one) for one in regrets(plan, rows, container=request.container, names=names)]


def _print_regrets(found: list[dict[str, object]]) -> None:
    click.echo("")
    print_table(
        ["check", "bytes", "chosen", "fastest", "regret", "to default"],
        [
            [str(one["op"]), str(one["nbytes"]), str(one["chosen"]), str(one["best"])]
            + [f"{one[name]:.1%}" if one[name] is not None else "-" for name in ("regret", "to_default")]
            for one in found
        ],
        whole=2,
    )
