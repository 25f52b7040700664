"""Read the parameters of short requests by a plan that is made once, because FastAPI's general way takes a third of
their time.

A plan knows the few kinds of parameters that our handlers have. When it is not sure (a parameter is missing or not
valid, a body does not say that it is JSON), FastAPI reads the request and answers. So a plan is faster, and never
decides otherwise.

A plan checks who may ask before it receives the body, within the bounds of the route (`json_bodies.py`); FastAPI would
parse it first. So every route with a body needs a plan. FastAPI never gets a large body: it parses on the event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends, Header, Query
from pydantic import BaseModel, TypeAdapter, ValidationError

from refstore.errors import Invalid
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.json_bodies import JSON, BodyBound, is_json, parse_body, receive_body, replay_request
from refstore_http.request_bodies import LOOP_BYTES_MAX

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

SCALARS: Final = (str, int, bool, str | None, int | None, bool | None)
"""Types that one text can stand for."""


class FastRoute(EncodedNameRoute):
    """A route that reads its parameters by a plan; for `APIRouter(route_class=...)`."""

    def get_route_handler(self) -> Handler:
        general = super().get_route_handler()
        plan = parameter_plan(self.endpoint, frozenset(self.param_convertors))
        if plan is None:
            return general
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint

        async def handle(request: Request) -> Response:
            checked = await plan.check(request)
            if plan.body is None:
                arguments = plan.arguments(request, checked)
                return await general(request) if arguments is None else await endpoint(**arguments)
            body = await receive_body(request, plan.body.bound.bytes_max)
            arguments = await plan.arguments_with_body(request, checked, plan.body, body)
            if arguments is None:
                return await general(replay_request(request, body))
            return await endpoint(**arguments)

        return handle


class _ParameterField(NamedTuple):
    name: str
    alias: str
    adapter: TypeAdapter[Any]
    default: Any
    """inspect.Parameter.empty: the parameter is required."""


class _BodyField(NamedTuple):
    name: str
    adapter: TypeAdapter[Any]
    default: Any
    """Of a request without a body. inspect.Parameter.empty: the body is required."""
    bound: BodyBound


class ParameterPlan(NamedTuple):
    request: str | None
    """The name of the parameter that takes the request itself."""
    dependencies: tuple[tuple[str, Callable[[Request], Awaitable[Any]]], ...]
    path: tuple[_ParameterField, ...]
    query: tuple[_ParameterField, ...]
    headers: tuple[_ParameterField, ...]
    body: _BodyField | None

    async def check(self, request: Request) -> dict[str, Any]:
        """Return the arguments that the dependencies make; they check who may ask. Raises what they raise."""
        return {name: await call(request) for name, call in self.dependencies}

    def arguments(self, request: Request, checked: dict[str, Any]) -> dict[str, Any] | None:
        """Return the handler's arguments; None: FastAPI must read the request."""
        try:
            return self._arguments_without_body(request, checked)
        except (KeyError, ValidationError):
            return None

    async def arguments_with_body(
        self, request: Request, checked: dict[str, Any], field: _BodyField, body: bytes
    ) -> dict[str, Any] | None:
        """Return the handler's arguments; None: FastAPI must read the request. Raises Invalid, RequestValidationError
        (of a large body).
        """
        is_large = len(body) > LOOP_BYTES_MAX
        content_type = request.headers.get("content-type", "")
        try:
            arguments = self._arguments_without_body(request, checked)
            if not body and field.default is not inspect.Parameter.empty:
                arguments[field.name] = field.default
            elif content_type == JSON or (is_large and is_json(content_type)):
                arguments[field.name] = await parse_body(request, body, field.adapter, field.bound)
            elif is_large:
                raise Invalid(f"the body was not sent as {JSON}; say so in the Content-Type")
            else:
                return None
        except (KeyError, ValidationError) as error:
            if is_large:
                raise _body_error(error) from None
            return None
        return arguments

    def _arguments_without_body(self, request: Request, checked: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments but the body. Raises KeyError, ValidationError."""
        arguments = checked
        if self.request is not None:
            arguments[self.request] = request
        _read(self.path, request.path_params, arguments)
        _read(self.query, request.query_params, arguments)
        _read(self.headers, request.headers, arguments)
        return arguments


def parameter_plan(endpoint: Callable[..., Any], in_path: frozenset[str]) -> ParameterPlan | None:
    """Make the plan of a handler; None: it has a kind of parameter that no plan knows."""
    hints = get_type_hints(endpoint, include_extras=True)
    if hints.get("return") is not Response:
        return None  # FastAPI makes the answer
    request: str | None = None
    body: _BodyField | None = None
    depends: list[tuple[str, Callable[[Request], Awaitable[Any]]]] = []
    path: list[_ParameterField] = []
    query: list[_ParameterField] = []
    headers: list[_ParameterField] = []
    for name, parameter in inspect.signature(endpoint).parameters.items():
        hint = hints[name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        match marks:
            case () if hint is Request:
                request = name
            case () if name in in_path:
                path.append(_ParameterField(name, name, TypeAdapter(hint), inspect.Parameter.empty))
            case () | (BodyBound(),) if _is_model(get_args(hint)[0] if marks else hint) and body is None:
                bound = marks[0] if marks else BodyBound()
                body = _BodyField(name, TypeAdapter(hint), parameter.default, bound)
            case () if hint in SCALARS:
                query.append(_ParameterField(name, name, TypeAdapter(hint), parameter.default))
            case (Depends(dependency=dependency),) if dependency is not None and _takes_request(dependency):
                depends.append((name, dependency))
            case (Query() as query_mark,) if get_args(hint)[0] in SCALARS:
                query.append(_ParameterField(name, query_mark.alias or name, TypeAdapter(hint), parameter.default))
            case (Header(alias=str(alias)),) if get_args(hint)[0] in SCALARS:
                headers.append(_ParameterField(name, alias, TypeAdapter(hint), parameter.default))
            case _:
                return None
    return ParameterPlan(request, tuple(depends), tuple(path), tuple(query), tuple(headers), body)


def _read(fields: tuple[_ParameterField, ...], values: Any, arguments: dict[str, Any]) -> None:
    """Read the fields from `values` into `arguments`. Raises KeyError, ValidationError."""
    for field in fields:
        value = values.get(field.alias)
        if value is not None:
            arguments[field.name] = field.adapter.validate_python(value)
        elif field.default is inspect.Parameter.empty:
            raise KeyError(field.name)
        else:
            arguments[field.name] = field.default


def _body_error(error: KeyError | ValidationError) -> RequestValidationError:
    """Return FastAPI's error for a request whose large body only we have read."""
    if isinstance(error, ValidationError):
        items = error.errors(include_url=False, include_context=False, include_input=False)
        return RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in items[:5]])
    return RequestValidationError([{"type": "missing", "loc": ("query", *error.args), "msg": "Field required"}])


def _is_model(hint: Any) -> bool:
    """Return whether it is a model, or a model or None."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return len(kinds) == 1 and inspect.isclass(kinds[0]) and issubclass(kinds[0], BaseModel)


def _takes_request(dependency: Any) -> bool:
    """Return whether it is a coroutine function of the request alone."""
    if not inspect.iscoroutinefunction(dependency):
        return False
    hints = get_type_hints(dependency)
    return [hints.get(name) for name in inspect.signature(dependency).parameters] == [Request]
