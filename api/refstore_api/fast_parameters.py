"""Read the parameters of short requests by a plan that is made once, because FastAPI's general way takes a third of
their time.

A plan knows the few kinds of parameters that our handlers have. When it is not sure (a parameter is missing or not
valid, a body does not say that it is JSON), FastAPI reads the request and answers. So a plan is faster, and never
decides otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from fastapi import Request, Response
from fastapi.params import Depends, Header, Query
from pydantic import BaseModel, TypeAdapter, ValidationError

from refstore_api.encoded_slashes import EncodedNameRoute

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

JSON: Final = "application/json"
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
            arguments = await plan.arguments(request)
            return await general(request) if arguments is None else await endpoint(**arguments)

        return handle


class _Field(NamedTuple):
    name: str
    alias: str
    adapter: TypeAdapter[Any]
    default: Any
    """inspect.Parameter.empty: the parameter is required."""


class ParameterPlan(NamedTuple):
    request: str | None
    """The name of the parameter that takes the request itself."""
    depends: tuple[tuple[str, Callable[[Request], Awaitable[Any]]], ...]
    path: tuple[_Field, ...]
    query: tuple[_Field, ...]
    headers: tuple[_Field, ...]
    body: _Field | None

    async def arguments(self, request: Request) -> dict[str, Any] | None:
        """Return the handler's arguments; None: FastAPI must read the request. Raises what the dependencies raise."""
        arguments: dict[str, Any] = {name: await call(request) for name, call in self.depends}
        if self.request is not None:
            arguments[self.request] = request
        try:
            _read(self.path, request.path_params, arguments)
            _read(self.query, request.query_params, arguments)
            _read(self.headers, request.headers, arguments)
            if self.body is not None:
                if request.headers.get("content-type") != JSON:
                    return None
                arguments[self.body.name] = self.body.adapter.validate_json(await request.body())
        except (KeyError, ValidationError):
            return None
        return arguments


def parameter_plan(endpoint: Callable[..., Any], in_path: frozenset[str]) -> ParameterPlan | None:
    """Make the plan of a handler; None: it has a kind of parameter that no plan knows."""
    hints = get_type_hints(endpoint, include_extras=True)
    request: str | None = None
    body: _Field | None = None
    depends: list[tuple[str, Callable[[Request], Awaitable[Any]]]] = []
    path: list[_Field] = []
    query: list[_Field] = []
    headers: list[_Field] = []
    for name, parameter in inspect.signature(endpoint).parameters.items():
        hint = hints[name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        match marks:
            case () if hint is Request:
                request = name
            case () if name in in_path:
                path.append(_Field(name, name, TypeAdapter(hint), inspect.Parameter.empty))
            case () if inspect.isclass(hint) and issubclass(hint, BaseModel) and body is None:
                body = _Field(name, name, TypeAdapter(hint), inspect.Parameter.empty)
            case () if hint in SCALARS:
                query.append(_Field(name, name, TypeAdapter(hint), parameter.default))
            case (Depends(dependency=dependency),) if dependency is not None and _takes_request(dependency):
                depends.append((name, dependency))
            case (Query() as query_mark,) if get_args(hint)[0] in SCALARS:
                query.append(_Field(name, query_mark.alias or name, TypeAdapter(hint), parameter.default))
            case (Header(alias=str(alias)),) if get_args(hint)[0] in SCALARS:
                headers.append(_Field(name, alias, TypeAdapter(hint), parameter.default))
            case _:
                return None
    return ParameterPlan(request, tuple(depends), tuple(path), tuple(query), tuple(headers), body)


def _read(fields: tuple[_Field, ...], values: Any, arguments: dict[str, Any]) -> None:
    """Read the fields from `values` into `arguments`. Raises KeyError, ValidationError."""
    for field in fields:
        value = values.get(field.alias)
        if value is not None:
            arguments[field.name] = field.adapter.validate_python(value)
        elif field.default is inspect.Parameter.empty:
            raise KeyError(field.name)
        else:
            arguments[field.name] = field.default


def _takes_request(dependency: Any) -> bool:
    """Return whether it is a coroutine function of the request alone."""
    if not inspect.iscoroutinefunction(dependency):
        return False
    hints = get_type_hints(dependency)
    return [hints.get(name) for name in inspect.signature(dependency).parameters] == [Request]
