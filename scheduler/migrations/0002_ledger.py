"""The ledger: partitioned by due_at from the first day, its states checked by the database.

The lists below are frozen with this migration; tests/store/test_state_machine.py compares them with
core/states.py, so that a change of the table there asks for a new migration.
"""

from django.db import migrations

OCCURRENCE = """
CREATE SEQUENCE fence_seq AS bigint;

CREATE TABLE occurrence (
    id uuid NOT NULL,
    due_at timestamptz NOT NULL,
    schedule_id uuid NOT NULL,
    revision integer NOT NULL,
    origin varchar(10) NOT NULL,
    origin_key uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    tenant_id uuid NOT NULL,
    shard smallint NOT NULL,
    overlap varchar(14) NOT NULL,
    state varchar(13) NOT NULL,
    wait_reason varchar(20),
    skip_reason varchar(10),
    dispatch_at timestamptz NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    -- Attempts that count: all but those that a draining worker handed back.
    attempt_count integer NOT NULL DEFAULT 0,
    -- Of these, those made before the last redrive: the budget of attempts begins after them.
    attempts_forgiven integer NOT NULL DEFAULT 0,
    fence bigint,
    overdue boolean NOT NULL DEFAULT false,
    coalesced integer NOT NULL DEFAULT 0,
    coalesced_from timestamptz,
    cancel_requested_at timestamptz,
    created_at timestamptz NOT NULL,
    queued_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    -- Somebody has seen it and will not run it again: it leaves the list of dead letters.
    dismissed_at timestamptz,
    result jsonb,
    error jsonb,
    progress jsonb,
    late_writes_refused integer NOT NULL DEFAULT 0,
    tzdata_version varchar(12) NOT NULL,
    -- Append-mostly in both keys; the identity first by time, 25 against 33 us a row of Postgres.
    PRIMARY KEY (due_at, id),
    CONSTRAINT occurrence_identity UNIQUE (due_at, schedule_id, revision, origin_key),
    CONSTRAINT occurrence_origin CHECK (origin IN ('schedule', 'trigger', 'backfill', 'child')),
    CONSTRAINT occurrence_nominal CHECK (
        (origin = 'schedule') = (origin_key = '00000000-0000-0000-0000-000000000000')),
    CONSTRAINT occurrence_overlap CHECK (overlap IN (
        'skip', 'buffer_one', 'buffer_all', 'cancel_running', 'allow')),
    CONSTRAINT occurrence_state CHECK (state IN (
        'PENDING', 'QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED', 'SUCCEEDED', 'FAILED',
        'DEAD_LETTERED', 'SKIPPED', 'CANCELLED', 'UNKNOWN')),
    CONSTRAINT occurrence_waits CHECK ((state = 'PENDING') = (wait_reason IS NOT NULL)),
    CONSTRAINT occurrence_wait_reason CHECK (wait_reason IN (
        'due', 'overlap', 'tenant_concurrency', 'tenant_rate', 'catch_up_budget')),
    CONSTRAINT occurrence_skips CHECK ((state = 'SKIPPED') = (skip_reason IS NOT NULL)),
    CONSTRAINT occurrence_skip_reason CHECK (skip_reason IN ('overlap', 'missed', 'expired', 'quota')),
    CONSTRAINT occurrence_ends CHECK (
        (state IN ('SUCCEEDED', 'FAILED', 'DEAD_LETTERED', 'SKIPPED', 'CANCELLED'))
        = (finished_at IS NOT NULL)),
    CONSTRAINT occurrence_dismissed CHECK (dismissed_at IS NULL OR state IN ('FAILED', 'DEAD_LETTERED')),
    CONSTRAINT occurrence_forgiven CHECK (attempts_forgiven BETWEEN 0 AND attempt_count),
    CONSTRAINT occurrence_held CHECK (state <> 'RUNNING' OR (fence IS NOT NULL AND attempt_count > 0)),
    CONSTRAINT occurrence_queued CHECK (state <> 'QUEUED' OR (queued_at IS NOT NULL AND generation > 0))
) PARTITION BY RANGE (due_at);

-- queries.runs of a schedule; store/schedules.sql: withdraw_look_ahead
CREATE INDEX occurrence_by_schedule ON occurrence (schedule_id, due_at DESC, id DESC);
-- queries.runs of a tenant
CREATE INDEX occurrence_by_tenant ON occurrence (tenant_id, due_at DESC, id DESC);
-- store/sweep.sql: unclaimed
CREATE INDEX occurrence_unclaimed ON occurrence (queued_at) WHERE state = 'QUEUED';
-- store/sweep.sql: without_waker
CREATE INDEX occurrence_waiting ON occurrence (dispatch_at)
    WHERE state IN ('PENDING', 'RETRY_WAIT', 'SUSPENDED');

-- store/sessions.sql: held_leases
CREATE INDEX occurrence_to_stop ON occurrence (id)
    WHERE state = 'RUNNING' AND cancel_requested_at IS NOT NULL;

-- store/outbox.sql: parked, and whoever frees a slot: the next in line
CREATE INDEX occurrence_parked ON occurrence (schedule_id, due_at, id)
    WHERE state = 'PENDING' AND wait_reason = 'overlap';

CREATE TABLE attempt (
    run_id uuid NOT NULL,
    due_at timestamptz NOT NULL,
    fence bigint NOT NULL,
    number integer NOT NULL,
    session_id uuid NOT NULL,
    worker varchar(200) NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz,
    outcome varchar(10),
    error jsonb,
    trace_id varchar(32),
    PRIMARY KEY (due_at, run_id, fence),
    CONSTRAINT attempt_outcome CHECK (outcome IN (
        'succeeded', 'failed', 'timed_out', 'lost', 'cancelled', 'superseded')),
    CONSTRAINT attempt_ends CHECK ((outcome IS NULL) = (finished_at IS NULL))
) PARTITION BY RANGE (due_at);

CREATE TABLE occurrence_default PARTITION OF occurrence DEFAULT;
CREATE TABLE attempt_default PARTITION OF attempt DEFAULT;
"""

TRANSITIONS = """
CREATE FUNCTION occurrence_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.state || '>' || NEW.state) = ANY ('{
        PENDING>QUEUED, PENDING>SKIPPED, PENDING>CANCELLED,
        QUEUED>RUNNING, QUEUED>SKIPPED, QUEUED>DEAD_LETTERED, QUEUED>CANCELLED, QUEUED>PENDING,
        RUNNING>SUCCEEDED, RUNNING>FAILED, RUNNING>CANCELLED, RUNNING>RETRY_WAIT,
        RUNNING>DEAD_LETTERED, RUNNING>UNKNOWN, RUNNING>SUSPENDED, RUNNING>QUEUED,
        RETRY_WAIT>QUEUED, RETRY_WAIT>CANCELLED,
        SUSPENDED>QUEUED, SUSPENDED>CANCELLED,
        UNKNOWN>SUCCEEDED, UNKNOWN>FAILED, UNKNOWN>PENDING,
        DEAD_LETTERED>PENDING, FAILED>PENDING}'::text[]) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'run %: no transition from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'occurrence_transition';
END $$;

CREATE TRIGGER occurrence_transition BEFORE UPDATE OF state ON occurrence
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION occurrence_transition();

CREATE FUNCTION occurrence_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run %: cannot be born as %', NEW.id, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'occurrence_birth';
END $$;

CREATE TRIGGER occurrence_birth BEFORE INSERT ON occurrence
    FOR EACH ROW WHEN (NEW.state NOT IN ('PENDING', 'SKIPPED')) EXECUTE FUNCTION occurrence_birth();
"""

HOLDING = """
CREATE TABLE session (
    id uuid PRIMARY KEY,
    kind varchar(8) NOT NULL CHECK (kind IN ('worker', 'tick', 'relay', 'sweep')),
    worker varchar(200) NOT NULL,
    capacity integer NOT NULL DEFAULT 0,
    busy integer NOT NULL DEFAULT 0,
    prefetched integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Written once at the claim, deleted by whatever ends the attempt: a lease that is gone is a void fence.
CREATE TABLE lease (
    run_id uuid PRIMARY KEY,
    due_at timestamptz NOT NULL,
    session_id uuid NOT NULL,
    fence bigint NOT NULL,
    claim_id uuid NOT NULL,
    granted_at timestamptz NOT NULL,
    -- started_at + timeout_s + cancel_grace_s: from here on the sweep ends the attempt
    ends_by timestamptz NOT NULL
);
-- store/leases.sql: expired_leases, renew_session
CREATE INDEX lease_by_session ON lease (session_id);
-- store/leases.sql: expired_leases
CREATE INDEX lease_ends_by ON lease (ends_by);

-- One row for each schedule whose overlap policy is not `allow`. Whoever parks and whoever frees locks it.
CREATE TABLE overlap_slot (
    schedule_id uuid PRIMARY KEY,
    run_id uuid,
    due_at timestamptz
);

-- The agenda: when somebody must next look at a run, and at which generation of it.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY,
    dispatch_at timestamptz NOT NULL,
    run_id uuid NOT NULL,
    due_at timestamptz NOT NULL,
    shard smallint NOT NULL,
    generation integer NOT NULL,
    tries integer NOT NULL DEFAULT 0,
    PRIMARY KEY (dispatch_at, id),
    CONSTRAINT outbox_once UNIQUE (run_id, generation)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- One row. Whoever takes the turn may put one round's worth of orphans back: the rate is that of all sweeps.
CREATE TABLE sweep_turn (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    taken_at timestamptz NOT NULL
);
INSERT INTO sweep_turn (taken_at) VALUES ('-infinity');

CREATE TABLE shard_lease (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind varchar(8) NOT NULL CHECK (kind IN ('tick', 'relay')),
    shard smallint NOT NULL,
    owner uuid,
    epoch bigint NOT NULL DEFAULT 0,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT shard_lease_once UNIQUE (kind, shard)
);
"""

COUNTING = """
-- Runs of due instants over all revisions of a schedule; what was skipped is none. A function, because
-- due.sql and rest.sql must not disagree; served by occurrence_by_schedule, asked only under max_occurrences.
CREATE FUNCTION fencepost_counted_runs(counted_schedule uuid) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT count(*)::integer FROM occurrence o
    WHERE o.schedule_id = counted_schedule AND o.origin = 'schedule' AND o.state <> 'SKIPPED'
$$;
"""

PARTITIONS = """
-- Monthly partitions from one month back to `months_ahead` ahead. A month that the default partition has
-- rows of is left to it: attaching would fail, and nothing is lost by waiting.
CREATE FUNCTION fencepost_make_partitions(months_ahead integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    this_month timestamp := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC');
    parent text;
    child text;
    first_day timestamptz;
    next_day timestamptz;
    made integer := 0;
    has_rows boolean;
BEGIN
    FOREACH parent IN ARRAY ARRAY['occurrence', 'attempt'] LOOP
        FOR first_day, next_day IN
            SELECT month AT TIME ZONE 'UTC', (month + interval '1 month') AT TIME ZONE 'UTC'
            FROM generate_series(
                this_month - interval '1 month', this_month + make_interval(months => months_ahead),
                interval '1 month') AS month
        LOOP
            child := parent || to_char(first_day AT TIME ZONE 'UTC', '"_"YYYYMM');
            CONTINUE WHEN to_regclass(child) IS NOT NULL;
            EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE due_at >= %L AND due_at < %L)',
                parent || '_default', first_day, next_day) INTO has_rows;
            CONTINUE WHEN has_rows;
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)'
                ' WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)',
                child, parent, first_day, next_day);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

SELECT fencepost_make_partitions(3);
"""

DROP = """
DROP TABLE shard_lease, sweep_turn, outbox, overlap_slot, lease, session, attempt, occurrence;
DROP FUNCTION fencepost_counted_runs(uuid);
DROP FUNCTION fencepost_make_partitions(integer);
DROP FUNCTION occurrence_transition();
DROP FUNCTION occurrence_birth();
DROP SEQUENCE fence_seq;
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0001_definitions")]

    operations = [
        migrations.RunSQL(OCCURRENCE + TRANSITIONS + HOLDING + COUNTING + PARTITIONS, reverse_sql=DROP),
    ]
