"""Refusals, as the `Status` objects that clients know."""

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable",
}  # fmt: skip


class ApiError(Exception):
    """An answer with a code of 400 and more."""

    def __init__(self, code, message, *, reason=None, details=None, headers=None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS[code]
        self.details = details or {}
        self.headers = headers or {}

    def as_json(self):
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "reason": self.reason, "details": self.details, "code": self.code,
        }  # fmt: skip


def not_found(resource, name):
    details = {"name": name, "kind": resource.plural, **({"group": resource.group} if resource.group else {})}
    return ApiError(404, f'{resource.title} "{name}" not found', details=details)


def conflict(resource, name, why):
    details = {"name": name, "kind": resource.plural, **({"group": resource.group} if resource.group else {})}
    message = f'Operation cannot be fulfilled on {resource.title} "{name}": {why}'
    return ApiError(409, message, details=details)


def already_exists(resource, name):
    details = {"name": name, "kind": resource.plural, **({"group": resource.group} if resource.group else {})}
    return ApiError(409, f'{resource.title} "{name}" already exists', reason="AlreadyExists", details=details)
