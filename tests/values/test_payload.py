from __future__ import annotations

import enum
import functools
import json
import math
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge
from holdfast.values.payload import Signature, decode_value, encode_value

LIMIT = 1_000_000


class Job:
    """Stands for the class that the worker injects."""


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    sku: str
    price: float = 1.0
    extra: Any = None


class Point(msgspec.Struct):
    x: int
    next: Point | None = None


class Address(TypedDict):
    city: str


def of(fn: Callable[..., Any]) -> Signature:
    return Signature.of(fn, Job)


def encode(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return of(fn).encode("kind", args, kwargs, LIMIT)


def round_trip(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    signature = of(fn)
    return signature.decode(signature.encode("kind", args, kwargs, LIMIT))


def refusal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        encode(fn, *args, **kwargs)
    assert caught.value.kind == "kind"
    return caught.value


def receipt(order_id: int, copies: int = 1) -> None: ...
def loose(value: Any) -> None: ...
def ratio(value: float | None) -> None: ...
def buy(item: Item) -> None: ...


def test_arguments_become_compact_json_by_name() -> None:
    assert encode(receipt, 1, 2) == encode(receipt, 1, copies=2) == '{"order_id":1,"copies":2}'


def test_an_argument_left_out_stays_out_and_gets_the_default_when_read() -> None:
    assert encode(receipt, 7) == '{"order_id":7}'
    assert of(receipt).decode('{"order_id":7}') == {"order_id": 7, "copies": 1}


def test_an_argument_equal_to_the_default_is_kept() -> None:
    assert encode(receipt, 7, copies=1) == '{"order_id":7,"copies":1}'


def test_a_default_need_not_be_json() -> None:
    nothing = object()

    def handler(a: int = nothing, b: list[int] = [1]) -> None: ...  # type: ignore[assignment]  # noqa: B006

    assert encode(handler) == "{}"
    assert of(handler).decode("{}") == {"a": nothing, "b": [1]}


def test_the_job_is_injected_by_its_annotation_and_not_part_of_the_payload() -> None:
    def handler(job: Job, a: int) -> None: ...

    assert of(handler).injected == "job"
    assert encode(handler, 1) == '{"a":1}'
    assert of(receipt).injected is None
    assert "given by the worker" in refusal(handler, a=1, job=3).reason


def test_the_job_may_be_optional_or_named_in_a_string() -> None:
    def optional(a: int, job: Job | None = None) -> None: ...
    def quoted(a: int, *, me: "Job") -> None: ...  # noqa: UP037

    assert of(optional).injected == "job"
    assert of(quoted).injected == "me"


def test_the_job_is_known_where_it_is_imported_for_type_checking_only() -> None:
    scope: dict[str, Any] = {}
    exec("def handler(a: int, job: 'Job'): ...", scope)
    assert of(scope["handler"]).injected == "job"


def test_two_jobs_are_refused() -> None:
    def handler(one: Job, two: Job) -> None: ...

    with pytest.raises(ConfigError, match="parameter two of handler"):
        of(handler)


def positional_only(a: int, /) -> None: ...
def star(*a: int) -> None: ...
def double_star(**a: int) -> None: ...
def unresolvable(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def custom(a: Job | int, b: complex) -> None: ...
def ambiguous(a: bytes | str) -> None: ...
def nested(a: list[complex]) -> None: ...


@pytest.mark.parametrize("fn", [positional_only, star, double_star, unresolvable, ambiguous, nested])
def test_a_parameter_that_cannot_be_served_is_refused_by_name(fn: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=f"parameter a of {fn.__name__}"):
        of(fn)


def test_a_class_that_json_cannot_carry_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="parameter b of custom"):
        of(custom)


def test_what_has_no_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="handler"):
        of(3)  # type: ignore[arg-type]


def test_a_return_annotation_that_cannot_be_resolved_does_no_harm() -> None:
    def handler(a: int) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821

    assert encode(handler, 1) == '{"a":1}'


def test_wrapped_partial_and_bound_handlers_are_read_like_functions() -> None:
    @functools.wraps(receipt)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    class Mailer:
        def send(self, order_id: int) -> None: ...
        def __call__(self, order_id: int) -> None: ...

    for fn in (wrapped, functools.partial(receipt, copies=2), Mailer().send, Mailer()):
        assert encode(fn, order_id=3) == '{"order_id":3}'


def test_a_type_of_the_enclosing_function_is_found_when_the_handler_uses_it() -> None:
    class Local(msgspec.Struct):
        a: int

    def handler(value: Local) -> int:
        return Local(1).a

    assert round_trip(handler, Local(2)) == {"value": Local(2)}


@pytest.mark.parametrize(
    "args, kwargs, argument, reason",
    [
        ((), {}, "order_id", "missing"),
        (("1",), {}, "order_id", "Expected `int`, got `str`"),
        ((True,), {}, "order_id", "Expected `int`, got `bool`"),
        ((1,), {"colour": 2}, "colour", "unexpected; the handler takes order_id, copies"),
        ((1,), {"order_id": 2}, "order_id", "given twice"),
        ((1, 2, 3), {}, None, "at most 2"),
        ((1,), {"copies": None}, "copies", "Expected `int`, got `null`"),
    ],
)
def test_a_call_that_does_not_fit_names_the_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | None, reason: str
) -> None:
    error = refusal(receipt, *args, **kwargs)
    assert error.argument == argument
    assert reason in error.reason
    assert str(argument or "payload") in str(error)


def test_a_job_that_is_not_annotated_is_asked_for_with_advice() -> None:
    def handler(job, order_id: int) -> None: ...  # type: ignore[no-untyped-def]

    assert refusal(handler, order_id=1).reason.startswith("missing; annotate it `job: Job` to be given the job")


def test_a_wrong_part_of_an_argument_is_placed() -> None:
    def handler(items: list[dict[str, int]], names: dict[str, int]) -> None: ...

    assert str(refusal(handler, [{"a": 1}, {"a": "x"}], {})).endswith("Expected `int`, got `str` (at [1][...])")
    assert refusal(handler, [], {1: 2}).argument == "names"


def test_rich_types_come_back_as_they_were() -> None:
    def handler(
        when: datetime,
        day: date,
        pause: timedelta,
        who: uuid.UUID,
        price: Decimal,
        raw: bytes,
        colour: Colour,
        mode: Literal["a", "b"],
        tags: set[str],
        item: Item,
        point: Point,
        address: Address,
        either: int | str | None,
        by_id: dict[int, str],
        short: Annotated[str, msgspec.Meta(max_length=3)],
    ) -> None: ...

    arguments = {
        "when": datetime(2030, 1, 1, tzinfo=UTC),
        "day": date(2030, 1, 1),
        "pause": timedelta(seconds=90),
        "who": uuid.UUID(int=7),
        "price": Decimal("1.10"),
        "raw": b"\x00\xff",
        "colour": Colour.RED,
        "mode": "b",
        "tags": {"x"},
        "item": Item("a", 2.5, {"n": [1]}),
        "point": Point(1, Point(2)),
        "address": {"city": "Ghent"},
        "either": None,
        "by_id": {1: "one"},
        "short": "abc",
    }
    assert round_trip(handler, **arguments) == arguments
    assert refusal(handler, **{**arguments, "short": "abcd"}).argument == "short"
    assert refusal(handler, **{**arguments, "mode": "c"}).argument == "mode"


def test_an_instance_with_wrong_fields_is_refused() -> None:
    error = refusal(buy, Item(sku=3))  # type: ignore[arg-type]
    assert (error.argument, error.reason) == ("item", "Expected `str`, got `int` (at .sku)")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused_wherever_they_hide(bad: float) -> None:
    def rows(values: list[list[float]]) -> None: ...
    def prices(values: dict[str, float]) -> None: ...

    assert refusal(ratio, bad).argument == "value"
    assert "[1][0]" in refusal(rows, [[1.0], [bad]]).reason
    assert refusal(prices, {"a": bad}).argument == "values"
    assert ".price" in refusal(buy, Item("a", price=bad)).reason
    assert refusal(loose, {"a": [bad]}).argument == "value"
    assert encode(ratio, None) == '{"value":null}'


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(object(), id="object"),
        b"x",
        bytearray(b"x"),
        {1},
        frozenset(),
        {1: 2},
        {None: 1},
        {(1, 2): 3},
        "\ud800",
        {"\ud800": 1},
        pytest.param(msgspec.Raw(b"nonsense"), id="raw"),
        pytest.param(lambda: None, id="function"),
        1j,
    ],
    ids=repr,
)
def test_what_json_would_lose_is_refused_where_nothing_is_annotated(bad: Any) -> None:
    def unannotated(value) -> None: ...  # type: ignore[no-untyped-def]
    def anything(value: object) -> None: ...
    def inner(value: dict[str, Any]) -> None: ...

    for fn, value in ((loose, bad), (unannotated, [bad]), (anything, {"a": bad}), (inner, {"a": (bad,)})):
        assert refusal(fn, value).argument == "value"
    assert refusal(buy, Item("a", extra=bad)).argument == "item"
    with pytest.raises(InvalidPayload, match="Invalid result: "):
        encode_value([bad], "result")


def test_annotations_allow_what_they_restore_beside_anything() -> None:
    def handler(value: dict[int, Any], tags: set[int] | dict[str, Any]) -> None: ...

    assert round_trip(handler, {1: "a"}, {2}) == {"value": {1: "a"}, "tags": {2}}


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "contains itself" in refusal(loose, cycle).reason
    with pytest.raises(InvalidPayload, match="contains itself"):
        encode_value(cycle, "result")


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(2 * sys.getrecursionlimit()):
        deep = [deep]
    assert "nested too deeply" in refusal(loose, deep).reason


def test_nul_characters_are_text() -> None:
    assert round_trip(loose, "a\0b") == {"value": "a\0b"}


def test_the_limit_counts_bytes() -> None:
    signature = of(loose)
    size = len('{"value":"üü"}'.encode())
    assert signature.encode("kind", ("üü",), {}, size) == '{"value":"üü"}'
    with pytest.raises(PayloadTooLarge) as caught:
        signature.encode("kind", ("üü",), {}, size - 1)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)


@pytest.mark.parametrize(
    "text, argument",
    [
        ("{}", "order_id"),
        ('{"order_id":"1"}', "order_id"),
        ('{"order_id":1,"old":2}', "old"),
        ('{"order_id":1', None),
        ("[1]", None),
        ("", None),
        ("nul", None),
        ('{"order_id":"\\ud800"}', None),
    ],
)
def test_a_payload_that_does_not_fit_the_handler_is_refused_when_read(text: str, argument: str | None) -> None:
    with pytest.raises(InvalidPayload) as caught:
        of(receipt).decode(text)
    assert (caught.value.kind, caught.value.argument) == ("receipt", argument)


def test_a_handler_without_arguments_has_an_empty_payload() -> None:
    def handler() -> None: ...

    assert round_trip(handler) == {}
    assert "no arguments" in refusal(handler, 1).reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    assert round_trip(loose, value) == {"value": value}
    assert decode_value(encode_value(value, "result")) == value
    assert json.loads(encode_value(value, "result")) == value


@given(
    st.builds(Item, sku=st.text(), price=st.floats(allow_nan=False, allow_infinity=False), extra=json_values),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.sets(st.uuids(), max_size=3), max_size=3),
)
def test_every_typed_value_comes_back_as_it_was(
    item: Item, when: datetime | None, groups: dict[int, set[uuid.UUID]]
) -> None:
    def handler(item: Item, when: datetime | None, groups: dict[int, set[uuid.UUID]]) -> None: ...

    assert round_trip(handler, item, when, groups=groups) == {"item": item, "when": when, "groups": groups}


def test_results_may_be_dataclasses_and_dates() -> None:
    assert encode_value({"item": Item("a"), "on": date(2030, 1, 1)}, "result") == (
        '{"item":{"sku":"a","price":1.0,"extra":null},"on":"2030-01-01"}'
    )


def test_a_value_that_is_not_json_text_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        decode_value("{")


@dataclass(slots=True)
class Slotted:
    value: Any = field(default=None)


def test_the_fields_of_a_slotted_dataclass_are_looked_at() -> None:
    with pytest.raises(InvalidPayload, match=r"\.value"):
        encode_value(Slotted(math.nan), "result")


@pytest.mark.parametrize("option", ["tx", "notify", "priority", "run_after", "idempotency_key"])
def test_an_option_of_using_among_the_arguments_is_told_where_it_belongs(option: str) -> None:
    def send(order_id: int) -> None: ...

    with pytest.raises(InvalidPayload, match=rf"did you mean \.using\({option}=…\)\?") as refused:
        Signature.of(send, Job).encode("send", (), {"order_id": 1, option: object()}, 1000)
    assert refused.value.argument == option
    assert "the handler takes order_id" in str(refused.value)


def test_an_option_of_using_that_the_handler_takes_itself_is_an_argument() -> None:
    def send(priority: int) -> None: ...

    assert Signature.of(send, Job).encode("send", (), {"priority": 1}, 1000) == '{"priority":1}'
