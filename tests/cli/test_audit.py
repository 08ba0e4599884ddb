"""``oneglance audit`` from the command line, on the embedded model."""

from .conftest import Run


def test_a_slice_of_the_full_audit(run: Run) -> None:
    """What ``make audit-full`` does with every budget and 200 prompts."""
    budgets, trees = (1, 63), ("best_first", "chain")
    words = [word for budget in budgets for word in ("--budget", budget)]
    words += [word for tree in trees for word in ("--tree", tree)]
    result = run("audit", "--prompts", 2, "--max-new-tokens", 16, *words, "--json")
    assert result.code == 0
    report = result.json
    assert (report["identical"], report["total"], report["divergences"]) == (8, 8, [])
    assert report["hf_generate"] == {"identical": 2, "total": 2}
    assert report["per_arm"] == {f"{tree}/{n}": {"identical": 2, "total": 2} for tree in trees for n in budgets}
    assert len(report["per_task"]) == 2
