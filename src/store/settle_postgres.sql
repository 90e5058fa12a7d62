-- Settles one question: the lock, the clock, the verdict, the write and the audit row in one statement.
-- $1 lock timeout or null, $2 chat, $3 call, $4 which of its questions (from 0), $5 key, $6 digest that the answer was
-- checked against, $7 accept, decline or expire, $8 value (JSON text), $9 by, $10 the names of whoever answers,
-- $11 idempotency key, $12 note, $13 via. The name in braces is the database's clock, clock_timestamp().
-- No row: there is no such call, or the transaction's snapshot is older.
with o as materialized (   -- our own statement does not wait for ever; null leaves the app's setting alone
    select case when $1::text is not null then set_config('lock_timeout', $1::text, true) end as waits
), l as (                   -- the lock
    select t.state, t.questions -> $4::int as q
      from o, askback_tool_calls t
     where t.chat_id = $2::uuid and t.id = $3::uuid and (o.waits is null or o.waits <> '')
       for no key update of t
), c as materialized (      -- the database's clock, read after the lock is ours
    select l.*, l.q -> 'decision' as was, {now} as at from l
), v as materialized (      -- the verdict
    select c.*, case
        when q ->> 'key' is distinct from $5::text then 'gone'
        when $7::text <> 'expire' and jsonb_exists(q, 'may') and not jsonb_exists_any(q -> 'may', $10::text[])
            then 'not_allowed'
        when was ->> 'idem' = $11::text and was ->> 'by' = $9::text and was ->> 'decision' = $7::text
             and was ->> 'value' is not distinct from $8::text then 'recorded'
        when was is not null then 'already'
        when q ->> 'digest' is distinct from $6::text then 'changed'
        when state <> 'waiting' then 'closed'
        when (q ->> 'expires_us')::bigint <= (extract(epoch from at) * 1000000)::bigint then 'expired'
        when $7::text = 'expire' then 'not_due'
        else 'won' end as verdict
      from c
), w as materialized (      -- what is written: the person's decision, or the declared default when the time is over
    select v.*, (extract(epoch from at) * 1000000)::bigint as at_us,
        case verdict when 'won' then $7::text
                     else case when jsonb_exists(q, 'default') then 'accept' else 'decline' end end as decision,
        case verdict when 'won' then $8::text else q ->> 'default' end as value,
        case verdict when 'won' then $9::text else 'system:expired' end as by_whom,
        case verdict when 'won' then $11::text end as idem,
        case verdict when 'won' then $12::text end as note,
        case verdict when 'won' then $13::text end as via
      from v where verdict in ('won', 'expired')
), u as (                   -- one path of the newest document is set, never the whole column
    update askback_tool_calls t
       set questions = jsonb_set(t.questions, array[$4::text, 'decision'], jsonb_strip_nulls(jsonb_build_object(
               'decision', w.decision, 'value', w.value, 'by', w.by_whom, 'at_us', w.at_us,
               'idem', w.idem, 'note', w.note, 'via', w.via))),
           open_count = case when w.decision = 'decline' then 0 else t.open_count - 1 end,
           state = case when w.decision = 'decline' or t.open_count = 1 then 'ready' else t.state end,
           approval = case when $5::text <> '' then t.approval
                           when w.decision = 'decline' then 'declined' else 'approved' end,
           next_expiry = (select to_timestamp(min((x.q ->> 'expires_us')::bigint) / 1000000.0)
                            from jsonb_array_elements(t.questions) with ordinality as x (q, n)
                           where x.n <> $4::int + 1 and not jsonb_exists(x.q, 'decision')),
           updated_at = w.at
      from w
     where t.chat_id = $2::uuid and t.id = $3::uuid
    returning t.state
), d as (                   -- the audit row
    insert into askback_decisions (chat_id, call_id, question, digest, decision, value, note, by_whom, via, idem, at)
    select $2::uuid, $3::uuid, $5::text, w.q ->> 'digest', w.decision, w.value, w.note, w.by_whom, w.via, w.idem, w.at
      from w, u
)
select v.verdict,
       coalesce(w.decision, s.was ->> 'decision') as decision, coalesce(w.value, s.was ->> 'value') as value,
       coalesce(w.by_whom, s.was ->> 'by') as by_whom, coalesce(w.at_us, (s.was ->> 'at_us')::bigint) as at_us,
       coalesce(w.note, s.was ->> 'note') as note, coalesce(w.via, s.was ->> 'via') as via,
       coalesce(u.state = 'ready', false) as ready
  from v
  left join (select was from v where verdict <> 'not_allowed') s on true
  left join w on true
  left join u on true
