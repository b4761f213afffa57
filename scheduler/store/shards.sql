-- Which process works which shard. Ownership only saves work: the constraint on occurrence is the guarantee.

-- name: make_shards
INSERT INTO shard_lease (kind, shard)
SELECT %(kind)s, shard FROM generate_series(0, %(shards)s - 1) AS shard
ON CONFLICT DO NOTHING

-- name: renew_shards
-- The whole of what I still own. A lease that ran out is not revived: somebody may be taking it.
UPDATE shard_lease SET expires_at = moment.now + make_interval(secs => %(length_s)s)
FROM (SELECT clock_timestamp() AS now) AS moment
WHERE kind = %(kind)s AND owner = %(owner)s AND expires_at > moment.now
RETURNING shard

-- name: acquire_shards
-- Free ones, at most as many as are missing to a fair share.
UPDATE shard_lease
SET owner = %(owner)s, epoch = epoch + 1, expires_at = clock_timestamp() + make_interval(secs => %(length_s)s)
WHERE id IN (
    SELECT id FROM shard_lease
    WHERE kind = %(kind)s AND shard = ANY(%(wanted)s) AND (owner IS NULL OR expires_at <= clock_timestamp())
    ORDER BY shard
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)
RETURNING shard

-- name: release_shards
-- What is beyond a fair share, or everything at the end: free at once for the others. `expires_at` stays,
-- as the instant since which the shard has had no owner.
UPDATE shard_lease SET owner = NULL, expires_at = clock_timestamp()
WHERE kind = %(kind)s AND owner = %(owner)s AND shard = ANY(%(shards)s)
RETURNING shard
