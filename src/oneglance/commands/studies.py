"""From the logs of rounds, probes and ablations to the sections of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oneglance.commands import logs
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.report.section import Section


def sections(
    *,
    rounds: Sequence[Path],
    probe: Path | None,
    ablations: Sequence[Path],
    transfer: Sequence[str],
    resamples: int,
) -> list[Section]:
    """Sections of the page, in the order of the paper's §6.

    Args:
        rounds: logs of one drafter, tree and budget.
        probe: what 'probe image' wrote.
        ablations: what 'ablate' wrote.
        transfer: ``[NAME=]LOG``.
        resamples: of the tail's parametric bootstrap.

    Raises:
        InputError: a log cannot be read, or the logs do not go together.
    """
    made = _of_rounds(rounds, resamples) if rounds else []
    if probe is not None:
        from oneglance.report.causes import study_image
        from oneglance.report.effects import image_section
        from oneglance.stats.rounds import read_rounds

        made.append(image_section(study_image(read_rounds(probe))))
    made += [_ablation(path) for path in ablations]
    if transfer:
        from oneglance.report.causes import study_transfer
        from oneglance.report.effects import transfer_section

        named = [(label, logs.target(path), logs.read([path], None)) for label, path in logs.named(transfer)]
        made.append(transfer_section(study_transfer(named, method="ml")))
    return made


def _of_rounds(files: Sequence[Path], resamples: int) -> list[Section]:
    from oneglance.report.entropy import sections as of_log
    from oneglance.stats.sidecar import folder

    log = logs.read(files, None)
    table = logs.marginals(files, None) if all(folder(file).is_dir() for file in files) else None
    return of_log(log, marginals=table, vocab_size=logs.vocab_size(files), resamples=resamples)


def _ablation(path: Path) -> Section:
    from oneglance.files import read_lines
    from oneglance.report.causes import WHOLE, lengths_of, study_ablation
    from oneglance.report.effects import ablation_section

    try:
        lengths = lengths_of(read_lines(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no log of 'oneglance ablate': {error}") from error
    if not lengths:
        raise InputError(f"{path} holds no prompt; write it with 'oneglance ablate conditioning --out {path}'")
    settings = logs.settings(path)
    kind = str(settings.get("ablation") or settings.get("command", "")).removeprefix("ablate ")  # before: "command"
    return ablation_section(study_ablation(lengths, baseline=WHOLE), baseline=WHOLE, kind=kind)
