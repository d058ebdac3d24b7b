"""Which parallel group a node runs in, and the function of `dispatch` that writes it.

A nullable column without a default: no row is rewritten, and nodes outside of groups take no more room. Runs that were
dispatched before have NULL everywhere: what newer code drops of their groups counts as having had a turn of its own. The
previous function stays, for processes of the previous release.
"""

from django.db import migrations, models

CREATE = """
CREATE FUNCTION workflow_dispatch_2(
    p_id uuid, p_workflow text, p_version int, p_fingerprint text, p_queue text, p_priority int,
    p_input jsonb, p_context jsonb, p_correlation_id text, p_idempotency_key text,
    p_suffixes text[], p_paths text[], p_units int[], p_besides int[], p_kinds text[], p_job uuid, p_delay float8
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    prefix text := left(p_id::text, -5);
    existing uuid;
BEGIN
    FOR round IN 1..10 LOOP
        INSERT INTO workflow_run (id, workflow, version, fingerprint, status, queue, priority,
                                  input, state, context, correlation_id, idempotency_key,
                                  created_at, updated_at)
        VALUES (p_id, p_workflow, p_version, p_fingerprint, 'pending', p_queue, p_priority, p_input,
                CASE WHEN p_input IS NULL THEN '{}'::jsonb
                     WHEN jsonb_typeof(p_input) = 'object' THEN p_input
                     ELSE jsonb_build_object('input', p_input) END,
                p_context, p_correlation_id, p_idempotency_key, clock_timestamp(), now())
        ON CONFLICT (workflow, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
        IF FOUND THEN
            INSERT INTO workflow_node (id, run_id, path, unit, beside, kind)
            SELECT (prefix || t.suffix)::uuid, p_id, t.path, t.unit, t.beside, t.kind
            FROM unnest(p_suffixes, p_paths, p_units, p_besides, p_kinds) AS t(suffix, path, unit, beside, kind);
            INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
            VALUES (p_job, 'unit', p_id, (prefix || '00001')::uuid, p_queue, p_priority,
                    now() + p_delay * interval '1 second');
            RETURN p_id;
        END IF;
        -- A snapshot of its own: it sees the run whose insertion was just waited for.
        SELECT r.id INTO existing FROM workflow_run AS r
        WHERE r.workflow = p_workflow AND r.idempotency_key = p_idempotency_key;
        IF FOUND THEN
            RETURN existing;
        END IF;
        -- Neither ours nor there: it was pruned between the two statements.
    END LOOP;
    RETURN NULL;
END
$$
"""

DROP = """
DROP FUNCTION workflow_dispatch_2(
    uuid, text, int, text, text, int, jsonb, jsonb, text, text, text[], text[], int[], int[], text[], uuid, float8
)
"""


class Migration(migrations.Migration):
    dependencies = [("workflow", "0008_events_in_their_order")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="beside",
            field=models.IntegerField(null=True),
        ),
        migrations.RunSQL(sql=CREATE, reverse_sql=DROP),
    ]
