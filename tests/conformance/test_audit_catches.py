"""The audit finds the bugs that others have shipped, put into our code on purpose: by tokens, or by features."""

from collections.abc import Callable, Sequence

import pytest

from conformance.test_seeded_bugs import (
    Patch,
    bonus_from_wrong_row,
    causal_mask,
    features_by_slice,
    features_one_layer_early,
    keep,
    mask_without_ancestors,
    no_rope_delta,
    positions_by_index,
    positions_one_late,
    stale_rope_delta,
)
from helpers import prompt, rng_for
from oneglance.audit import AuditReport, Case, audit
from oneglance.core import TokenTree
from oneglance.reference import reference
from oneglance.targets.base import Target
from oneglance.testing import ScriptedDrafter, random_tree, tiny_target

CAP = 24


def knowing(target: Target, cases: Sequence[Case]) -> ScriptedDrafter:
    """Random trees with each case's own answer woven in, and features read as a head reads them."""
    answers = {
        tuple(case.inputs.token_ids): reference(target, case.inputs, max_new_tokens=CAP).token_ids for case in cases
    }
    rng = rng_for("knowing")

    def script(so_far: Sequence[int], max_depth: int) -> TokenTree:
        (known,) = [ids for ids in answers if tuple(so_far[: len(ids)]) == ids]
        ahead = answers[known][len(so_far) - len(known) :]
        return random_tree(rng, target.vocab_size, budget=20, max_depth=min(max_depth, 15), along=ahead)

    return ScriptedDrafter(script, target_layer_ids=target.self_attention_layers[1:3])


def audited(family: str, image_counts: Sequence[int]) -> AuditReport:
    target = tiny_target(family)
    cases = [Case(str(i), "test", prompt(target, n, text=f"case {i}", seed=i)) for i, n in enumerate(image_counts)]
    *_, report = audit(target, {"knowing": lambda t: knowing(target, cases)}, cases, max_new_tokens=CAP)
    return report


BUGS: dict[str, tuple[Callable[[Patch], None], str, tuple[int, ...]]] = {
    "wrong mask: siblings see each other": (causal_mask, "qwen3", (0,)),
    "wrong mask: no ancestors": (mask_without_ancestors, "qwen3_vl", (1,)),
    "wrong position: packed index": (positions_by_index, "llama", (0,)),
    "wrong position: one late": (positions_one_late, "qwen2_5_vl", (1,)),
    "rope delta left out": (no_rope_delta, "qwen3_vl", (2,)),
    "stale rope delta": (stale_rope_delta, "qwen3_vl", (1, 0, 2)),
    "commit: crop instead of gather": (keep(lambda path, _: range(len(path))), "qwen3", (0,)),
    "commit: off by one": (keep(lambda path, _: [*path[:-1], max(path[-1] - 1, 0)]), "qwen3_vl", (1,)),
    "bonus from another row": (bonus_from_wrong_row, "mllama", (1,)),
}


def test_sound_code_has_no_bugs() -> None:
    report = audited("qwen3_vl", (1, 0, 2))
    assert (report.overall.identical, report.bugs) == (3, 0)
    assert 0 < report.max_feature_error < 1e-3


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_the_text_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, family, image_counts = BUGS[name]
    bug(monkeypatch)
    report = audited(family, image_counts)
    assert report.bugs
    assert any(d.verdict == "bug" for d in report.divergences)
    assert report.hf.identical == report.hf.total, "the reference is sound"


@pytest.mark.parametrize("bug", [features_by_slice], ids=["features of rejected nodes"])
def test_wrong_features_are_found_though_the_text_is_right(
    bug: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    report = audited("qwen3", (0,))
    assert (report.overall.identical, report.divergences) == (1, [])
    (fault,) = report.feature_faults
    assert fault.error > 0.5
    assert report.bugs == 1
    assert report.as_dict()["feature_faults"][0]["arm"] == "knowing"


def test_features_of_another_layer_are_alike_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the audit cannot see: a wrong feature point is the same in every pass. ``checks.check_features`` sees it."""
    features_one_layer_early(monkeypatch)
    assert audited("qwen3", (0,)).bugs == 0
