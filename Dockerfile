FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY requirements.runtime.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.runtime.lock

COPY manage.py ./
COPY scheduler scheduler
COPY tenants tenants
COPY api api
COPY examples examples
COPY templates templates

# Values for this one command: the image carries no secret.
RUN SECRET_KEY=unused ALLOWED_HOSTS=unused python manage.py collectstatic --noinput --verbosity 0

RUN useradd --system fencepost && install -d -o fencepost /var/lib/fencepost
USER fencepost
ENV FENCEPOST_HOME=/var/lib/fencepost BIND=0.0.0.0 PORT=8000

CMD ["python", "manage.py", "web"]
