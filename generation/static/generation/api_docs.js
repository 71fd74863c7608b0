// The page of /v1/docs/. The key is kept by the open page only, and nothing but this head is asked.
"use strict";

SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  persistAuthorization: false,
  queryConfigEnabled: false,
  validatorUrl: null,
});
