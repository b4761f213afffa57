"""Template names for `tenants.dashboard.presentation`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from scheduler import trigger_words
from tenants.dashboard import presentation

register = template.Library()

register.filter("tone", presentation.tone)
register.filter("state_words", presentation.state_words)
register.filter("offset", presentation.offset_text)
register.filter("utc", presentation.utc_text)
register.filter("distance", presentation.distance)
register.filter("duration", presentation.duration)
register.filter("error_text", presentation.error_text)
register.filter("plain_words", trigger_words.plain_words)
register.filter("zone_of", trigger_words.zone_of)
register.filter("zone_name", trigger_words.zone_name)


@register.simple_tag
def moment(instant: datetime, zone: tzinfo = UTC) -> SafeString:
    """An instant in local time; UTC is in the tooltip and in the machine-readable attribute."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        presentation.machine_text(instant),
        presentation.utc_text(instant),
        presentation.local_text(instant, zone),
    )


@register.filter
def took(started_at: datetime, finished_at: datetime) -> str:
    return presentation.duration(finished_at - started_at)


@register.filter
def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def is_empty_object(value: Any) -> bool:
    return isinstance(value, Mapping) and not value
