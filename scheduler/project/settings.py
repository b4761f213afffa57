"""Django's settings. What a deployment may change comes from `environment.py`; the rest is constant."""

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from api.configuration import REST_FRAMEWORK as REST_FRAMEWORK
from api.configuration import SPECTACULAR_SETTINGS as SPECTACULAR_SETTINGS
from scheduler.project import environment

try:
    FENCEPOST = environment.load(os.environ)
except environment.ConfigurationError as error:
    raise ImproperlyConfigured(str(error)) from None

BASE_DIR = environment.REPOSITORY
SECRET_KEY = FENCEPOST.secret_key
ALLOWED_HOSTS = list(FENCEPOST.allowed_hosts)
DEBUG = FENCEPOST.debug

ROOT_URLCONF = "scheduler.project.urls"
WSGI_APPLICATION = "scheduler.project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "scheduler.project.formats"
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"


def _example_apps() -> list[str]:
    """The examples are an app only where their jobs are asked for, as `up` does."""
    return ["examples"] if any(name.split(".")[0] == "examples" for name in FENCEPOST.jobs) else []


INSTALLED_APPS = [
    "unfold",  # before admin: it overrides admin's templates
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "django_celery_results",
    "csp",
    "tenants",
    "tenants.dashboard",
    "scheduler",
    "api",
    *_example_apps(),
]

MIDDLEWARE = [
    "api.middleware.RequestIdMiddleware",  # first: every answer, refusals included, carries the id
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "scheduler.project.middleware.ConsolePolicyMiddleware",  # inside csp: it sets what csp then writes
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "tenants.middleware.TenantMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


# Database ---------------------------------------------------------------------------------------


def _database(url: str) -> dict[str, Any]:
    """Django's dictionary for a libpq URL; query parameters become connection options."""
    try:
        options: dict[str, Any] = dict(conninfo_to_dict(url))
    except ProgrammingError as error:
        raise ImproperlyConfigured(f"DATABASE_URL is not a libpq URL: {error}") from None
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": options.pop("dbname"),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": options.pop("port", ""),
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "DISABLE_SERVER_SIDE_CURSORS": True,  # PgBouncer in transaction mode
    }


DATABASES = {"default": _database(FENCEPOST.database_url)}
ENGINE_DATABASE_URL = FENCEPOST.engine_database_url
ADMIN_DATABASE_URL = FENCEPOST.admin_database_url


# Broker: the values that scheduler/project/celery.py reads ----------------------------------------


def _broker_transport_options(url: str) -> dict[str, Any]:
    """Folders of kombu's filesystem transport; other transports need nothing."""
    parts = urlsplit(url)
    if parts.scheme != "filesystem":
        return {}
    folder = unquote(parts.path)
    return {
        "data_folder_in": f"{folder}/queue",
        "data_folder_out": f"{folder}/queue",
        "control_folder": f"{folder}/control",
        "store_processed": False,
        "polling_interval": 0.05,
    }


CELERY_BROKER_URL = FENCEPOST.broker_url
CELERY_BROKER_TRANSPORT_OPTIONS = _broker_transport_options(FENCEPOST.broker_url)
# Sessions in Postgres are the liveness of a worker; this is that of its connection. A consumer only listens:
# without heartbeats it listened for ever to a connection whose other end was gone and had not said so.
CELERY_BROKER_HEARTBEAT = 10
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Exclusive, Celery's default, ends a worker at its start while another of its name, or its own connection
# that the broker has not missed yet, has the queue; durable: RabbitMQ 4 gives up queues that are neither.
CELERY_CONTROL_QUEUE_EXCLUSIVE = False
CELERY_CONTROL_QUEUE_DURABLE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 4
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_LOST_WAIT = 0.5  # for a dead child's last words; Celery's default is ten seconds
CELERY_TASK_ACKS_LATE = False  # the worker acknowledges by itself, once a claim is durable
CELERY_TASK_IGNORE_RESULT = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = "django-db"
CELERY_TIMEZONE = "UTC"


# Web --------------------------------------------------------------------------------------------

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"

if FENCEPOST.https:  # behind a proxy that ends TLS and sets X-Forwarded-Proto
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 24 * 3600

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]

UNFOLD = {
    "SITE_TITLE": "Fencepost",
    "SITE_HEADER": "Fencepost",
    "SITE_SUBHEADER": "Console",
    "SITE_ICON": lambda request: static("dashboard/mark.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("dashboard/mark.svg")}
    ],
    "SHOW_HISTORY": False,  # Django's own log of edits: everything here is in the audit log
    "COLORS": {
        "primary": {  # the dashboard's accent in unfold's scale
            "50": "oklch(97.5% .014 186)",
            "100": "oklch(94.5% .03 186)",
            "200": "oklch(89% .05 186)",
            "300": "oklch(81% .07 186)",
            "400": "oklch(73% .08 186)",
            "500": "oklch(58% .085 186)",
            "600": "oklch(46% .075 186)",
            "700": "oklch(40% .066 186)",
            "800": "oklch(34% .055 186)",
            "900": "oklch(29% .045 186)",
            "950": "oklch(21% .035 186)",
        }
    },
}


# Logs -------------------------------------------------------------------------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
