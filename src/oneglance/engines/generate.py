"""The tree inside transformers' own ``generate``: ``model.generate(**inputs, custom_generate=Glance("my-head"))``.

transformers has prepared everything by then: its processors, its stopping criteria, its generation config. This file
only chooses who makes the passes. (An ``assistant_model`` could not: transformers verifies one sequence of candidates.)
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from oneglance.accept import Greedy, LogitsProcessor, Rule, Sampled
from oneglance.core import DEFAULT_BUDGET, CutReason, Drafter, InputError, OneglanceWarning, Round
from oneglance.decode import decode
from oneglance.drafters import prepare
from oneglance.guard import Guarded
from oneglance.targets import family
from oneglance.targets.base import Target
from oneglance.targets.probe import check_row_independence
from oneglance.targets.state import Inputs
from oneglance.tree import policy

# what generate prepares for a forward pass; packed passes have their own
PREPARED = frozenset({"use_cache", "logits_to_keep", "position_ids", "cache_position", "attention_mask"})
ENCODED = "mm_encoder_outputs"
CACHES = ("cache", "past_key_values")
OUTPUTS = ("return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states")


class Glance:
    """A ``custom_generate`` that decodes with a draft head: the tokens of ``generate``, in fewer passes.

    Greedy text is that of ``generate`` token for token. With ``do_sample`` the distribution is the same; the draws are
    seeded from torch's generator, so ``torch.manual_seed`` repeats them, but they are not those of
    ``torch.multinomial``. One sequence without padding; beams and extra outputs are refused.

    transformers hands no ``streamer`` to a ``custom_generate``, it only gets the prompt: leave it out.

    Args:
        head: a folder, a hub id, or ``builtin:reader``; weights of another drafter where one is named.
        drafter: a name in ``drafters.DRAFTERS``.
        tree: ``best_first``, ``chain`` or ``fixed``.
        budget: nodes of the candidate tree, root excluded.
        branch_k: ranks looked at per offset; default as many as the budget (exact).
        processor: of the model, for drafters that read text; only such ask for it.

    Attributes:
        rounds: of the last generation.

    Raises:
        InputError: no such head, drafter or tree.
    """

    def __init__(
        self,
        head: str | None = "builtin:reader",
        *,
        drafter: str = "block",
        tree: str = "best_first",
        budget: int = DEFAULT_BUDGET,
        branch_k: int | None = None,
        processor: Any = None,
    ) -> None:
        self._bind = prepare(drafter, head)
        self._options = {"policy": policy(tree), "budget": budget, "branch_k": branch_k}
        self._processor = processor
        self._bound: tuple[weakref.ref[Any], Target, Drafter] | None = None
        self.rounds: list[Round] = []

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor:
        """As transformers calls it.

        Returns:
            (1, T + new) prompt and new tokens.

        Raises:
            InputError: what a tree cannot do; the message names the argument.
        """
        _check(model, input_ids, generation_config, model_kwargs)
        rule = _rule(logits_processor, generation_config)
        target, drafter = self._bind_to(model)
        inputs = _inputs(target, input_ids, model_kwargs)
        keeper = Criteria(stopping_criteria, input_ids, int(generation_config.max_length))
        guarded = Guarded(drafter, target)
        self.rounds = []
        state = target.prefill(inputs, guarded.target_layer_ids)
        root = rule.first(state.last_row, state.token_ids)
        keeper.push((root,))
        state.token_ids.append(root)
        self.rounds.extend(decode(target, guarded, rule, state, root, keeper))
        return keeper.ids

    def _bind_to(self, model: Any) -> tuple[Target, Drafter]:
        """The target and drafter of a model, made at its first generation."""
        if self._bound is None or self._bound[0]() is not model:
            wanted = [parameter.requires_grad for parameter in model.parameters()]
            target = family(model.config.model_type)(model, self._processor, name=model.config._name_or_path)
            for parameter, before in zip(model.parameters(), wanted, strict=True):
                parameter.requires_grad_(before)  # the model stays its owner's
            check_row_independence(target)
            with warnings.catch_warnings():
                if self._processor is None:  # nobody can say which chat template made these ids
                    warnings.filterwarnings(
                        "ignore", r"the head .* was trained with another chat template;", OneglanceWarning
                    )
                self._bound = weakref.ref(model), target, self._bind(target, **self._options)
        return self._bound[1:]


@dataclass(slots=True)
class Criteria:
    """Keeps tokens until transformers' stopping criteria say stop, asked after each one, as ``generate`` does.

    Attributes:
        stopping_criteria: transformers' list.
        ids: (1, T) tokens so far.
        max_length: most tokens, prompt included.
    """

    stopping_criteria: Any
    ids: Tensor
    max_length: int
    is_done: bool = field(default=False, init=False)

    @property
    def cut(self) -> CutReason | None:
        return "stop" if self.is_done else None

    @property
    def room(self) -> int:
        return 0 if self.is_done else max(self.max_length - self.ids.shape[1], 0)

    def push(self, token_ids: tuple[int, ...]) -> list[int]:
        """The tokens kept."""
        kept: list[int] = []
        for token in token_ids:
            if not self.room:
                break
            kept.append(token)
            self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], dim=1)
            self.is_done = bool(self.stopping_criteria(self.ids, None).all())
        return kept


def _inputs(target: Target, input_ids: Tensor, model_kwargs: dict[str, Any]) -> Inputs:
    """The prompt; its images are encoded already where this transformers does that before it calls."""
    given = {k: v for k, v in model_kwargs.items() if k not in PREPARED and k not in CACHES and v is not None}
    images = given.pop(ENCODED, None)
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask  # transformers drops a mask without padding
    inputs = target.wrap({**given, "input_ids": input_ids, "attention_mask": mask})
    if not images:
        return inputs
    if set(images) != {"image"} or not target.takes_encoded:
        raise InputError(f"{', '.join(images)} input is not supported here; use oneglance.load(…).generate")
    encoded = {ENCODED: images, "position_ids": model_kwargs["position_ids"]}
    return replace(inputs, num_images=len(images["image"].pooler_output), encoded=encoded)


def _rule(logits_processor: Any, config: Any) -> Rule:
    eos = config.eos_token_id
    eos_ids: Sequence[int] = () if eos is None else eos if isinstance(eos, list | tuple) else (eos,)
    processor: LogitsProcessor | None = logits_processor if len(logits_processor) else None
    if not config.do_sample:
        return Greedy(processor, eos_ids=eos_ids)
    return Sampled(int(torch.randint(2**62, ())), processor, eos_ids=eos_ids)


def _check(model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse what would be ignored or come out otherwise than in ``generate``."""
    for name, plain in (("num_beams", 1), ("num_return_sequences", 1), ("penalty_alpha", None), ("dola_layers", None)):
        if getattr(config, name, None) not in (None, plain):
            raise InputError(f"{name}={getattr(config, name)} is not supported with a candidate tree; leave it out")
    for name in OUTPUTS:
        if getattr(config, name, None):
            raise InputError(f"{name} is not supported with custom_generate=Glance(…); leave it out")
    if getattr(config, "guidance_scale", None) not in (None, 1, 1.0):
        raise InputError("guidance_scale runs the model in between; it is not supported with a candidate tree")
    if model.training:
        raise InputError("the model is in training mode, in which no two passes agree; call model.eval()")
    for name in CACHES:
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length():
            raise InputError(
                f"{name} holds earlier tokens; a candidate tree starts from the whole prompt: leave it out"
            )
    _check_positions(model, input_ids, model_kwargs)


def _check_positions(model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
    """Positions of the caller's own would be ignored: only those that ``generate`` itself makes may be there."""
    given, make = model_kwargs.get("position_ids"), getattr(model, "_prepare_position_ids_for_generation", None)
    if given is None or make is None or model_kwargs.get(ENCODED):  # with encoded images they are used as they are
        return
    rest = {key: value for key, value in model_kwargs.items() if key != "position_ids"}
    mask = rest.get("attention_mask")
    own = make(input_ids, {**rest, "attention_mask": torch.ones_like(input_ids) if mask is None else mask})
    if given.shape != own.shape or not torch.equal(given, own):
        raise InputError("position_ids are not those of the prompt as it stands; leave them out")
