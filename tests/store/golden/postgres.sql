-- enqueue
    insert into holdfast_jobs
        (id, queue, kind, payload, available_at, created_at, max_attempts
        )
    values (%(id)s::text::uuid, %(queue)s, %(kind)s, %(payload)s::text::json,
        statement_timestamp()
        , statement_timestamp(), %(max_attempts)s
        )
    on conflict do nothing
    returning
        case when %(channel)s::text is not null and available_at <= created_at then pg_notify(%(channel)s, queue)::text end
;

-- enqueue (given: priority, key, bucket)
    insert into holdfast_jobs
        (id, queue, kind, payload, available_at, created_at, max_attempts
        , priority
        , key, place
        , bucket
        )
    values (%(id)s::text::uuid, %(queue)s, %(kind)s, %(payload)s::text::json,
        statement_timestamp()
        , statement_timestamp(), %(max_attempts)s
        , %(priority)s
        , %(key)s, nextval('holdfast_places')
        , %(bucket)s
        )
    on conflict do nothing
    returning
        case when %(channel)s::text is not null and available_at <= created_at then pg_notify(%(channel)s, queue)::text end
;

-- claim (given: queues)
update holdfast_jobs j
   set state = 'leased', fence = least(j.fence, 9223372036854775806) + 1, attempts = least(j.attempts, 2147483646) + 1,
       began = false, leased_by = %(worker)s, leased_at = statement_timestamp(),
       lease_expires_at = statement_timestamp()
           + coalesce(nullif(greatest(j.lease_ms, 0), 0),
               %(lease_ms)s::integer) * interval '1 millisecond'
 where j.id = any (array(
    select due.id
      from (
        select q.queue, level.priority, '-infinity'::timestamptz as floor, null::timestamptz as ceiling
          from unnest((select %(queues)s::text[])) as q (queue)
         cross join lateral (
            with recursive level (priority, available_at) as (
                (select priority, available_at from holdfast_jobs where queue = q.queue and state = 'pending'
                  order by priority desc, available_at limit 1)
                union all
                select n.priority, n.available_at
                  from level cross join lateral (
                    select priority, available_at from holdfast_jobs
                     where queue = q.queue and state = 'pending' and priority < level.priority
                     order by priority desc, available_at limit 1) n)
            select priority, available_at from level) level
         order by level.priority desc, level.available_at
           ) level
     cross join lateral (
        select id
          from holdfast_jobs
         where queue = level.queue and state = 'pending' and priority = level.priority
           and (available_at, id) >= (level.floor, '00000000-0000-0000-0000-000000000000'::uuid)
           and available_at <= least(level.ceiling, statement_timestamp())
           and ((select %(kinds)s::text[]) is null or kind = any ((select %(kinds)s::text[])::text[]))
         order by available_at, id
         limit (select %(limit)s::bigint)
           for update skip locked) due
     limit (select %(limit)s::bigint)))
returning j.id::text, j.queue, j.kind, j.payload::text, j.headers::text, j.key, j.priority, j.attempts, j.max_attempts,
    j.fence, coalesce(nullif(greatest(j.lease_ms, 0), 0),
        %(lease_ms)s::integer),
    date_part('epoch', j.available_at at time zone interval '0') * 1000000,
    date_part('epoch', j.created_at at time zone interval '0') * 1000000, j.cancel_requested, j.lapses;

-- claim (given: lane_queues, leases, unsuspected)
update holdfast_jobs j
   set state = 'leased', fence = least(j.fence, 9223372036854775806) + 1, attempts = least(j.attempts, 2147483646) + 1,
       began = false, leased_by = %(worker)s, leased_at = statement_timestamp(),
       lease_expires_at = statement_timestamp()
           + coalesce(nullif(greatest(j.lease_ms, 0), 0),
               ((select %(leases)s::text::integer[]))[array_position(%(kinds)s::text[], j.kind)],
               %(lease_ms)s::integer) * interval '1 millisecond'
 where j.id = any (array(
    select due.id
      from (
        select l.queue, coalesce(l.priority, (
                   select priority from holdfast_jobs
                    where queue = l.queue and state = 'pending' and priority < l.below and priority > l.above
                    order by priority desc limit 1)) as priority,
               coalesce(l.floor, '-infinity') as floor, l.ceiling
          from unnest(%(lane_queues)s::text[], %(lane_priorities)s::text::smallint[], %(lane_belows)s::text::smallint[],
                      %(lane_aboves)s::text::smallint[], %(lane_floors)s::text::timestamptz[],
                      %(lane_ceilings)s::text::timestamptz[])
               as l (queue, priority, below, above, floor, ceiling)
           ) level
     cross join lateral (
        select id
          from holdfast_jobs
         where queue = level.queue and state = 'pending' and priority = level.priority
           and (available_at, id) >= (level.floor, '00000000-0000-0000-0000-000000000000'::uuid)
           and available_at <= least(level.ceiling, statement_timestamp())
           and ((select %(kinds)s::text[]) is null or kind = any ((select %(kinds)s::text[])::text[]))
           and lapses = 0
         order by available_at, id
         limit (select %(limit)s::bigint)
           for update skip locked) due
     limit (select %(limit)s::bigint)))
returning j.id::text, j.queue, j.kind, j.payload::text, j.headers::text, j.key, j.priority, j.attempts, j.max_attempts,
    j.fence, coalesce(nullif(greatest(j.lease_ms, 0), 0),
        ((select %(leases)s::text::integer[]))[array_position(%(kinds)s::text[], j.kind)],
        %(lease_ms)s::integer),
    date_part('epoch', j.available_at at time zone interval '0') * 1000000,
    date_part('epoch', j.created_at at time zone interval '0') * 1000000, j.cancel_requested, j.lapses;

-- renew
with held as materialized (
    select %(id)s::text::uuid[] as id, %(fence)s::text::bigint[] as fence, %(lease_ms)s::text::integer[] as lease_ms,
           %(began)s::text::boolean[] as began)
update holdfast_jobs j
   set lease_expires_at = statement_timestamp()
           + coalesce(((select lease_ms from held))[width_bucket(j.id, (select id from held))], 0)
               * interval '1 millisecond',
       began = j.began or ((select began from held))[width_bucket(j.id, (select id from held))]
 where j.id = any ((select id from held)::uuid[])
   and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
   and j.fence = ((select fence from held))[width_bucket(j.id, (select id from held))]
returning j.id::text, j.cancel_requested;

-- put_back
with held as materialized (
    select %(id)s::text::uuid[] as id, %(fence)s::text::bigint[] as fence, %(delay_ms)s::text::bigint[] as delay_ms,
           array(select statement_timestamp() + u.delay_ms * interval '1 millisecond'
                   from unnest(%(delay_ms)s::text::bigint[]) as u (delay_ms)) as available_at,
           %(attempts_back)s::text::integer[] as attempts_back, %(error)s::text::jsonb as error,
           %(lapses)s::text::integer[] as lapses, %(waits_for)s::text[] as waits_for),
back as (
    update holdfast_jobs j
       set state = case when ((select delay_ms from held))[width_bucket(j.id, (select id from held))] is null
               and ((select waits_for from held))[width_bucket(j.id, (select id from held))] is not null
               and not j.cancel_requested
               then 'waiting' else 'pending' end,
           waits_for = ((select waits_for from held))[width_bucket(j.id, (select id from held))],
           fence = least(j.fence, 9223372036854775806) + 1,
           attempts = greatest(j.attempts, 1)
               - ((select attempts_back from held))[width_bucket(j.id, (select id from held))],
           lapses = coalesce(((select lapses from held))[width_bucket(j.id, (select id from held))], j.lapses),
           available_at = coalesce(((select available_at from held))[width_bucket(j.id, (select id from held))],
               j.available_at),
           leased_by = null, leased_at = null, lease_expires_at = null,
           errors = coalesce(coalesce(j.errors, '[]'::jsonb)
               || nullif((select error from held) -> (width_bucket(j.id, (select id from held)) - 1), 'null'::jsonb),
               j.errors)
     where j.id = any ((select id from held)::uuid[])
       and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
       and j.fence = ((select fence from held))[width_bucket(j.id, (select id from held))]
    returning j.id, j.queue, j.state <> 'waiting'
        and coalesce(((select delay_ms from held))[width_bucket(j.id, (select id from held))], 0) = 0 as due)
select id::text, case when %(channel)s::text is not null and due then pg_notify(%(channel)s, queue)::text end from back;

-- finish (given: whole)
with held as materialized (select %(id)s::text::uuid[] as id, %(fence)s::text::bigint[] as fence),
gone as (
    delete from holdfast_jobs j
     where j.id = any ((select id from held)::uuid[])
       and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
       and j.fence = case when (select cardinality(fence) from held) = 1 then (select fence[1] from held)
                     else ((select fence from held))[width_bucket(j.id, (select id from held))] end
    returning j.*, width_bucket(j.id, (select id from held)) as n),
kept as (
    insert into holdfast_finished
        (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays,
         priority, bucket, outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress,
         result, errors, followers, place)
    select id, fence, available_at, created_at, leased_at, statement_timestamp(), attempts, max_attempts,
           lease_ms, replays, priority, bucket,
           case when cardinality(%(outcome)s::text[]) = 1 then (%(outcome)s::text[])[1] else (%(outcome)s::text[])[n] end,
           queue, kind, key, unique_key, leased_by, (%(fingerprint)s::text[])[n], payload, headers, progress,
           (%(result)s::text[])[n]::json,
           case when (%(error)s::text[])[n] is null then errors
                else coalesce(errors, '[]'::jsonb) || (%(error)s::text[])[n]::jsonb end,
           followers, place
      from gone
    returning id)
select id::text from kept where (select count(*) from kept) < (select cardinality(id) from held)
union all
select null from held where (select count(*) from kept) = cardinality(id);

-- drop (given: whole)
with held as materialized (select %(id)s::text::uuid[] as id, %(fence)s::text::bigint[] as fence),
gone as (
    delete from holdfast_jobs j
     where j.id = any ((select id from held)::uuid[])
       and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
       and j.fence = case when (select cardinality(fence) from held) = 1 then (select fence[1] from held)
                     else ((select fence from held))[width_bucket(j.id, (select id from held))] end
    returning j.id),
noted as (
    insert into holdfast_dropped (at, ids)
    select statement_timestamp(), id[n : (n + 99)]
      from (select id, generate_series(1, cardinality(id), 100) as n from held where exists (select 1 from gone)) h)
select id::text from gone where (select count(*) from gone) < (select cardinality(id) from held)
union all
select null from held where (select count(*) from gone) = cardinality(id);

-- finish_one
with gone as (
    delete from holdfast_jobs
     where id = %(id)s::text::uuid and fence = %(fence)s::bigint and followers is null
    returning *),
kept as (
    insert into holdfast_finished
        (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays,
         priority, bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, result, errors,
         place)
    select id, fence, available_at, created_at, leased_at, statement_timestamp(), attempts, max_attempts, lease_ms, replays,
           priority, bucket, 'done', queue, kind, key, unique_key, leased_by, payload, headers, progress,
           %(result)s::text::json, errors, place
      from gone
    returning id)
select id::text from kept
;

-- drop_one
with gone as (
    delete from holdfast_jobs
     where id = %(id)s::text::uuid and fence = %(fence)s::bigint and followers is null
    returning id),
noted as (
    insert into holdfast_dropped (at, ids) select statement_timestamp(), array[id] from gone)
select id::text from gone
;
