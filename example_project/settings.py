"""Settings of the example project, for development, the demo and the tests.

Read from the environment: DATABASE_URL, TEST_DATABASE_NAME, REDIS_URL, DEBUG, LOG_LEVEL, SECRET_KEY,
ALLOWED_HOSTS, WORKFLOW_SETTINGS, SHOP_PAYMENT_TIMEOUT.
"""

import json
import os
from pathlib import Path

from example_project import database

BASE_DIR = Path(__file__).resolve().parent.parent

# Off unless asked for: with it Django keeps the text of every query, at the cost of workers and benchmarks.
DEBUG = os.environ.get("DEBUG", "").lower() in {"1", "true", "yes", "on"}
SECRET_KEY = os.environ.get(
    "SECRET_KEY", "an-example-key-that-guards-nothing-and-must-not-be-used-in-production"
)
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "pgtrigger",
    "workflow",
    "example_project.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
ASGI_APPLICATION = "example_project.asgi.application"
LOGIN_URL = "admin:login"
STATIC_URL = "static/"

DATABASES = {"default": database.from_environment()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

# Without Redis, PostgreSQL's notifications tell the live pages what happens in other processes.
REDIS_URL = os.environ.get("REDIS_URL", "")
CHANNEL_LAYERS = {
    "default": (
        {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
        if REDIS_URL
        else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    )
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"workflow": {"level": os.environ.get("LOG_LEVEL", "INFO").upper()}},
}

# The demo and the tests start workers with settings of their own: WORKFLOW_SETTINGS='{"SWEEP_INTERVAL": 1}'
WORKFLOW: dict[str, object] = json.loads(os.environ.get("WORKFLOW_SETTINGS", "{}"))

# How long the shop waits for a customer's payment, in seconds. A real one would give them days.
SHOP_PAYMENT_TIMEOUT = float(os.environ.get("SHOP_PAYMENT_TIMEOUT", "20"))
