"""What pydantic finds wrong, in our words."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from oneglance.errors import problem


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")

    num_layers: int = Field(default=5, gt=0)
    width: int = 2


class Recipe(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    shape: Shape | None = None

    @field_validator("name")
    @classmethod
    def _is_short(cls, value: str) -> str:
        if len(value) > 3:
            raise ValueError(f"{value!r} is too long")
        return value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a", "len": 1}, "no key 'len'; its keys: name, shape"),
        ({"name": "a", "shape": {"depth": 1}}, "no key 'shape.depth'; the keys of shape: num_layers, width"),
        ({}, "key 'name' is missing"),
        ({"name": "abcd"}, "name: 'abcd' is too long"),
        ({"name": "a", "shape": {"num_layers": -1}}, "shape.num_layers: Input should be greater than 0, got -1"),
    ],
)
def test_the_first_fault_names_what_there_is(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(given)
    assert problem(caught.value, Recipe, noun="key") == message
