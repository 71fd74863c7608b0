"""`/v1/openapi.json`, and `/v1/docs/`, a page to read it and to try it out.

Both without a key: there is nothing in them that the repository does not say. The page asks for the key itself, keeps
it for as long as it is open, and sends it to this head only.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from generation.openai import schema

#: As strict as the admin's (settings), but for the pictures that Swagger UI's own style sheet carries.
PAGE_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}


@csrf_exempt  # what is no GET is a 405 in any case
@require_safe
def openapi_json(request: HttpRequest) -> HttpResponse:
    return HttpResponse(schema.document_json(), content_type="application/json")


@csrf_exempt
@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    response = render(request, "generation/api_docs.html")
    response.headers["Content-Security-Policy"] = "; ".join(f"{name} {value}" for name, value in PAGE_POLICY.items())
    return response
