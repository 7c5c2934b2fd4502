-- Holdfast's queries for PostgreSQL: the life of jobs.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (statement_timestamp()), except where a test tells the time.
-- Numbers at their ends stay there (`least`, `greatest`): otherwise a row written by hand would stop a whole batch.
-- Batches: each column of a batch is an array parameter; all but texts come as one text and are cast once, in `held`,
-- in a `select` or in `unnest`. For other arrays asyncpg asks the server what they are, 10 to 17 ms at their first use
-- on each connection, and then takes 0.5 µs an item. Held jobs are found by primary key, and a job's place in the batch
-- by halving its sorted ids (width_bucket); the id must then be there, so that a batch in a wrong order writes nothing.
-- A join with the batch is what the planner gets wrong when statistics were gathered at a bad moment: it read the whole
-- table, or compared each row with each (2,000 rows took 2 seconds, and once 500 did).
-- Citus takes fewer forms than PostgreSQL (docs/scale.md says which, tests/store/test_citus_forms.py reads each
-- statement): CASE and COALESCE of a write, RETURNING and ON CONFLICT ask no clock and notify nobody, a column is not
-- added to a clock's time, and CASE names its conditions. `at time zone interval '0'` is UTC: what is reckoned there
-- depends on no setting of the session, and PostgreSQL knows it.

-- enqueue: add one job, and wake its queue's workers at commit.
-- An id that is there adds nothing, so a lost reply to COMMIT may be answered by running it again; `take_back` sees to
-- jobs that were finished meanwhile. What is NULL, or 0 by default, is left out: it takes time to bind, to send
-- and to read. JSON, ids and times are bound as text: on a caller's connection a codec of theirs would take them
-- otherwise.
-- A job with a unique key answers with its id if it was added: a look at the table would see the caller's snapshot.
-- A job with a key gets its place in line (see `lines`): no row that others write is touched, so nobody waits here.
-- Differs: written in a CTE, as Citus wants it, where wake-ups are switched off, as they should be there. Elsewhere it
-- took 3 to 9 % more of the server's CPU (an alternating comparison).
with added as (  -- when quiet
    insert into holdfast_jobs
        (id, queue, kind, payload, available_at, created_at, max_attempts
        , priority  -- when priority
        , headers  -- when headers
        , lease_ms  -- when lease_ms
        , key, place  -- when key
        , bucket  -- when bucket
        , unique_key  -- when unique_key
        , followers  -- when followers
        )
    values (:id::text::uuid, :queue, :kind, :payload::text::json,
        coalesce(:run_at::text::timestamptz,  -- when run_at
        :now
            + :delay_ms::bigint * interval '1 millisecond'  -- when delay_ms
        )  -- when run_at
        , :now, :max_attempts
        , :priority  -- when priority
        , :headers::text::json  -- when headers
        , :lease_ms  -- when lease_ms
        , :key, nextval('holdfast_places')  -- when key
        , :bucket  -- when bucket
        , :unique_key  -- when unique_key
        , :followers  -- when followers
        )
    on conflict do nothing
    returning
        id::text,  -- when unique_key
        -- when notifying:
        case when :channel::text is not null and available_at <= created_at then pg_notify(:channel, queue)::text end
        -- end
        -- when quiet:
        queue, available_at <= created_at as due)
select
       id,  -- when unique_key
       case when :channel::text is not null and due then pg_notify(:channel, queue)::text end
  from added
        -- end
;

-- enqueue_alike: add a batch of jobs that differ in id and payload only, and wake their queue once at commit.
with added as (
    insert into holdfast_jobs
        (id, queue, kind, payload, available_at, created_at, max_attempts
        , priority  -- when priority
        , headers  -- when headers
        , lease_ms  -- when lease_ms
        , key, place  -- when key
        , bucket  -- when bucket
        , unique_key  -- when unique_key
        , followers  -- when followers
        )
    select u.id, :queue::text, :kind::text, u.payload::json,
           coalesce(:run_at::text::timestamptz,  -- when run_at
           :now
               + :delay_ms::bigint * interval '1 millisecond'  -- when delay_ms
           )  -- when run_at
           , :now, :max_attempts::integer
           , :priority::smallint  -- when priority
           , :headers::text::json  -- when headers
           , :lease_ms::integer  -- when lease_ms
           , :key::text, nextval('holdfast_places')  -- when key
           , :bucket::smallint  -- when bucket
           , :unique_key::text  -- when unique_key
           , :followers::integer  -- when followers
      from unnest(:id::text::uuid[], :payload::text[]) as u (id, payload)
    on conflict do nothing
    returning available_at <= created_at as due)
select pg_notify(:channel, :queue::text)::text from added where due and :channel::text is not null limit 1;

-- enqueue_keyed: add a batch of jobs that differ in id, payload and key only, and wake their queue once at commit.
with added as (
    insert into holdfast_jobs
        (id, queue, kind, payload, available_at, created_at, max_attempts, key, place, bucket
        , priority  -- when priority
        , headers  -- when headers
        , lease_ms  -- when lease_ms
        , followers  -- when followers
        )
    select u.id, :queue::text, :kind::text, u.payload::json,
           coalesce(:run_at::text::timestamptz,  -- when run_at
           :now
               + :delay_ms::bigint * interval '1 millisecond'  -- when delay_ms
           )  -- when run_at
           , :now, :max_attempts::integer, u.key, nextval('holdfast_places'), u.bucket
           , :priority::smallint  -- when priority
           , :headers::text::json  -- when headers
           , :lease_ms::integer  -- when lease_ms
           , :followers::integer  -- when followers
      from unnest(:id::text::uuid[], :payload::text[], :key::text[], :bucket::text::smallint[])
           as u (id, payload, key, bucket)
    on conflict do nothing
    returning available_at <= created_at as due)
select pg_notify(:channel, :queue::text)::text from added where due and :channel::text is not null limit 1;

-- enqueue_many: add a batch of jobs of any sort, and wake each queue once at commit; unique ones as in enqueue.
-- Differs: what is the same in all jobs comes as an array of one, or of none for NULL, which unnest pads with NULLs.
-- That took 14 µs a job where 13 full arrays took 21.
-- bind: once queue, kind, priority, delay_ms, max_attempts
with added as (
    insert into holdfast_jobs
        (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, key, place,
         bucket, unique_key
        , followers  -- when followers
        )
    select u.id,
           case when cardinality(:queue::text[]) = 1 then (:queue::text[])[1] else u.queue end,
           case when cardinality(:kind::text[]) = 1 then (:kind::text[])[1] else u.kind end,
           u.payload::json, u.headers::json,
           case when cardinality(:priority::smallint[]) = 1 then (:priority::smallint[])[1] else u.priority end,
           coalesce(u.run_at, :now + interval '1 millisecond'
               * case when cardinality(:delay_ms::bigint[]) = 1 then (:delay_ms::bigint[])[1] else u.delay_ms end),
           :now,
           case when cardinality(:max_attempts::integer[]) = 1 then (:max_attempts::integer[])[1]
                else u.max_attempts end,
           u.lease_ms, u.key, case when u.key is not null then nextval('holdfast_places') end, u.bucket, u.unique_key
           , :followers::integer  -- when followers
      from unnest(:id::text::uuid[], :queue::text[], :kind::text[], :payload::text[], :headers::text[],
                  :priority::smallint[], :run_at::text::timestamptz[], :delay_ms::bigint[], :max_attempts::integer[],
                  :lease_ms::integer[], :key::text[], :bucket::smallint[], :unique_key::text[])
           as u (id, queue, kind, payload, headers, priority, run_at, delay_ms, max_attempts, lease_ms, key, bucket,
                 unique_key)
    on conflict do nothing
    returning id, queue, available_at, created_at)
select
       null::text,  -- when unique
       pg_notify(:channel, q.queue)::text
  from (select distinct queue from added where available_at <= created_at) q
 where :channel::text is not null
 union all select id::text, null from added  -- when unique
;

-- take_back: delete live jobs that are finished already: a repeated enqueue added them a second time.
-- What it has added has no followers yet. One that has is from elsewhere, and leaves by the door when it ends.
-- A statement after the insert, in its transaction: whatever kept the insert from finding the job has committed by now.
delete from holdfast_jobs j
 where j.id = any (:ids::uuid[]) and j.followers is null
   and (select f.id from holdfast_finished f where f.id = j.id) is not null;

-- take_back_dropped: delete live jobs that were dropped already, since a moment before their first enqueue.
-- A job that was dropped had been claimed, so its fence was above 0; with 0 it is what the repeat has added, or its
-- like.
delete from holdfast_jobs j
 where j.fence = 0 and j.followers is null
   and j.id = any (array(
    select t.id
      from holdfast_dropped d
     cross join unnest(d.ids) as t (id)
     where d.at >= :since::timestamptz and t.id = any (:ids::uuid[])));

-- unique_find: read the live jobs that hold these unique keys, with the place of each in the batch.
-- No text comes back but the id: a caller's connection may decode texts in a way of its own.
select u.n, j.id::text
  from unnest(:kind::text[], :unique_key::text[]) with ordinality as u (kind, unique_key, n)
  join holdfast_jobs j on j.kind = u.kind and j.unique_key = u.unique_key
 where j.unique_key is not null;

-- keys_take: take idempotency keys that are free or past their window; the flow reads who holds the others.
-- Answers with the jobs that took one, and those are not read again: a caller's REPEATABLE READ still sees who held a
-- key before.
-- On a key that another transaction is taking, this waits for it: nobody can miss a key that then commits.
-- Differs: what ends a window after now is past it, because `on conflict` may not ask for the time (see the head).
insert into holdfast_keys (scope, key, job_id, expires_at)
select u.scope, u.key, u.job_id, :now + :window_ms::bigint * interval '1 millisecond'
  from unnest(:scope::text[], :key::text[], :job_id::text::uuid[]) as u (scope, key, job_id)
on conflict (scope, key) do update set job_id = excluded.job_id, expires_at = excluded.expires_at
 where holdfast_keys.expires_at at time zone interval '0'
       <= excluded.expires_at at time zone interval '0' - :window_ms::bigint * interval '1 millisecond'
returning job_id::text;

-- keys_find: read which job holds each key, with the place of the key in the batch.
select u.n, k.job_id::text
  from unnest(:scope::text[], :key::text[]) with ordinality as u (scope, key, n)
  join holdfast_keys k on k.scope = u.scope and k.key = u.key;

-- keys_point: let keys name the unique job that was found instead of the one that was not added.
update holdfast_keys k
   set job_id = u.holder
  from unnest(:scope::text[], :key::text[], :job_id::text::uuid[], :holder::text::uuid[])
       as u (scope, key, job_id, holder)
 where k.scope = u.scope and k.key = u.key and k.job_id = u.job_id;

-- keys_forget: free a key that this transaction took for an effect that failed.
delete from holdfast_keys
 where scope = :scope and key = :key and job_id = :job_id::text::uuid;

-- debounce_take: lock the rows of debounce keys, made where they are not there, and read what each names.
-- On a key that another call has, this waits for that call's transaction: the last of them counts.
-- A repeated call leaves `latest` as it is, to find out whether it was its own; a new one counts at once.
-- The time moves once a minute at most: it is in an index, and otherwise an update of the row stays on its page.
with taken as (
    insert into holdfast_debounces as d (kind, key, job_id, latest, changed_at)
    select u.kind, u.key, u.job_id, u.job_id, :now
      from unnest(:kind::text[], :key::text[], :job_id::text::uuid[]) as u (kind, key, job_id)
    on conflict (kind, key) do update set
        latest = excluded.latest,  -- when fresh
        changed_at = case when d.changed_at at time zone interval '0'
                < excluded.changed_at at time zone interval '0' - interval '1 minute'
            then excluded.changed_at else d.changed_at end
    returning kind, key, job_id, latest)
select u.n, t.job_id::text, t.latest::text
  from unnest(:kind::text[], :key::text[]) with ordinality as u (kind, key, n)
  join taken t on t.kind = u.kind and t.key = u.key;

-- debounce_find: read what debounce keys name whose rows are locked, with the place of each in the batch.
select u.n, d.job_id::text, d.latest::text
  from unnest(:kind::text[], :key::text[]) with ordinality as u (kind, key, n)
  join holdfast_debounces d on d.kind = u.kind and d.key = u.key;

-- debounce_update: give pending jobs that nobody has claimed a new payload, and put them off; answers with their ids.
-- One that is due keeps its place, or a stream of calls would send it behind the others again and again.
-- One with a key is left alone once it is due: it may stand in a line, whose claims would wait for the caller.
-- No predicate here matches the index of pending jobs: the planner must find them by primary key.
with changed as (
    update holdfast_jobs j
       set payload = u.payload::json, headers = u.headers::json,
           available_at = case when j.available_at > u.now
               then greatest(u.now, least(u.until, (j.created_at at time zone interval '0'
                   + u.max_wait_ms * interval '1 millisecond') at time zone interval '0'))
               else j.available_at end
      from (select u.job_id, u.payload, u.headers, u.max_wait_ms, :now as now,
                   :now + u.wait_ms * interval '1 millisecond' as until
              from unnest(:job_id::text::uuid[], :payload::text[], :headers::text[], :wait_ms::text::bigint[],
                          :max_wait_ms::text::bigint[]) as u (job_id, payload, headers, wait_ms, max_wait_ms)
            offset 0) u
     where j.id = any ((select :ids::text::uuid[])::uuid[]) and j.id = u.job_id
       and j.fence = 0 and j.state not in ('leased', 'waiting') and (j.key is null or j.available_at > u.now)
    returning j.id, j.queue, j.available_at <= u.now as due)
select case when :channel::text is not null and due then pg_notify(:channel, queue)::text end, id::text from changed;

-- debounce_point: let debounce keys name these jobs, and say which call did that.
update holdfast_debounces d
   set job_id = u.job_id, latest = u.latest
  from unnest(:kind::text[], :key::text[], :job_id::text::uuid[], :latest::text::uuid[])
       as u (kind, key, job_id, latest)
 where d.kind = u.kind and d.key = u.key;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- Rows are addressed by primary key (id = any): a join here may walk the whole table when statistics are stale.
-- It hops from priority to priority, highest first, and stops when it has enough. Without the hops, jobs for later are
-- walked over each time (200,000 of them on PostgreSQL 15: 1,852 pages and 30 to 100 ms, with the hops 23 pages and 1
-- to 3 ms). They cost a claim of one job 5 pages more (18, 23), a batch up to 7 %.
-- With lanes it begins at their floors instead, and looks through the gaps between them for a priority that is new.
-- The outer limit stops the loop over the levels: no row is locked that is not taken. A floor as a row comparison is
-- where the index scan begins; as a plain one it makes the planner think of few rows, and read and sort them all.
-- Queues, kinds and limit are asked for by `select`, which hides them from the planner: plans made for their values
-- looked so much cheaper than the one for all that each claim was planned again, for 0.3 to 0.5 ms of the server's CPU.
-- Times come as microseconds since 1970: out of timestamps asyncpg makes datetimes at 2 µs each, and few are looked at.
update holdfast_jobs j
   set state = 'leased', fence = least(j.fence, 9223372036854775806) + 1, attempts = least(j.attempts, 2147483646) + 1,
       began = false, leased_by = :worker, leased_at = :now,
       lease_expires_at = :now
           + coalesce(nullif(greatest(j.lease_ms, 0), 0),
               ((select :leases::text::integer[]))[array_position(:kinds::text[], j.kind)],  -- when leases
               :lease_ms::integer) * interval '1 millisecond'
 where j.id = any (array(
    select due.id
      from (
        -- when queues:
        select q.queue, level.priority, '-infinity'::timestamptz as floor, null::timestamptz as ceiling
          from unnest((select :queues::text[])) as q (queue)
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
        -- end
        -- when lane_queues:
        select l.queue, coalesce(l.priority, (
                   select priority from holdfast_jobs
                    where queue = l.queue and state = 'pending' and priority < l.below and priority > l.above
                    order by priority desc limit 1)) as priority,
               coalesce(l.floor, '-infinity') as floor, l.ceiling
          from unnest(:lane_queues::text[], :lane_priorities::text::smallint[], :lane_belows::text::smallint[],
                      :lane_aboves::text::smallint[], :lane_floors::text::timestamptz[],
                      :lane_ceilings::text::timestamptz[])
               as l (queue, priority, below, above, floor, ceiling)
        -- end
           ) level
     cross join lateral (
        select id
          from holdfast_jobs
         where queue = level.queue and state = 'pending' and priority = level.priority
           and (available_at, id) >= (level.floor, '00000000-0000-0000-0000-000000000000'::uuid)
           and available_at <= least(level.ceiling, :now)
           and ((select :kinds::text[]) is null or kind = any ((select :kinds::text[])::text[]))
           and lapses = 0  -- when unsuspected
           -- when buckets:
           and (bucket is null or bucket = any ((select :buckets::text::smallint[])::smallint[])
                or available_at <= :now - :overdue_ms::bigint * interval '1 millisecond')
           -- end
         order by available_at, id
         limit (select :limit::bigint)
           for update skip locked) due
     limit (select :limit::bigint)))
returning j.id::text, j.queue, j.kind, j.payload::text, j.headers::text, j.key, j.priority, j.attempts, j.max_attempts,
    j.fence, coalesce(nullif(greatest(j.lease_ms, 0), 0),
        ((select :leases::text::integer[]))[array_position(:kinds::text[], j.kind)],  -- when leases
        :lease_ms::integer),
    date_part('epoch', j.available_at at time zone interval '0') * 1000000,
    date_part('epoch', j.created_at at time zone interval '0') * 1000000, j.cancel_requested, j.lapses;

-- renew: put the end of held leases off, note whose handler has begun, and tell who was asked to stop.
with held as materialized (
    select :id::text::uuid[] as id, :fence::text::bigint[] as fence, :lease_ms::text::integer[] as lease_ms,
           :began::text::boolean[] as began)
update holdfast_jobs j
   set lease_expires_at = :now
           + coalesce(((select lease_ms from held))[width_bucket(j.id, (select id from held))], 0)
               * interval '1 millisecond',
       began = j.began or ((select began from held))[width_bucket(j.id, (select id from held))]
 where j.id = any ((select id from held)::uuid[])
   and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
   and j.fence = ((select fence from held))[width_bucket(j.id, (select id from held))]
returning j.id::text, j.cancel_requested;

-- begin: record that the handler of a leased job is about to be called.
update holdfast_jobs set began = true where id = :id and fence = :fence returning id;

-- expiry_look: read the time, and how often each of these jobs was replayed by hand: such a job is to run.
select id::text, replays, date_part('epoch', :now) * 1000000
  from holdfast_jobs
 where id = any ((select :ids::text::uuid[])::uuid[]);

-- put_back: return leased jobs to their queue.
-- To retry them (delay, error), to snooze (delay, attempt back) or to release them (attempt back).
-- Or to park them (what they wait for, attempt back): with a delay they are due by then at the latest, without one they
-- wait.
-- The fence rises here too, so that the holder of the lease can no longer write.
-- Errors come as one JSON array, in which a place is found at once; PostgreSQL walks to a text in an array of texts.
-- bind: once
with held as materialized (
    select :id::text::uuid[] as id, :fence::text::bigint[] as fence, :delay_ms::text::bigint[] as delay_ms,
           array(select :now + u.delay_ms * interval '1 millisecond'
                   from unnest(:delay_ms::text::bigint[]) as u (delay_ms)) as available_at,
           :attempts_back::text::integer[] as attempts_back, :error::text::jsonb as error,
           :lapses::text::integer[] as lapses, :waits_for::text[] as waits_for),
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
       and j.followers is null  -- when unfollowed
       and j.followers = :bits::integer  -- when bits
    returning j.id, j.queue, j.state <> 'waiting'
        and coalesce(((select delay_ms from held))[width_bucket(j.id, (select id from held))], 0) = 0 as due)
select id::text, case when :channel::text is not null and due then pg_notify(:channel, queue)::text end from back;

-- wake: make jobs due that wait for something, and wake their queues' workers at commit.
-- A leased job may still say what it waited for before: it waits for nothing now.
with woken as (
    update holdfast_jobs
       set available_at = least(case when state = 'waiting' then null else available_at end, :now),
           state = 'pending', waits_for = null
     where id = any ((select :ids::text::uuid[])::uuid[]) and state <> 'leased' and waits_for is not null
       and waits_for = :waits_for  -- when waits_for
    returning id, queue)
select id::text, case when :channel::text is not null then pg_notify(:channel, queue)::text end from woken;

-- finish: move leased jobs to the finished table with their outcome.
-- What is the same for all comes as an array of one, or of none for NULL: a text is found in an array by walking to it.
-- One NULL answers for all of them.
-- Jobs with followers are left alone where `unfollowed` is given: their end has consequences, see `followed`. Where
-- `bits` are given, so are all whose followers are not just these.
-- bind: once fence, outcome
with held as materialized (select :id::text::uuid[] as id, :fence::text::bigint[] as fence),
gone as (
    delete from holdfast_jobs j
     where j.id = any ((select id from held)::uuid[])
       and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
       and j.fence = case when (select cardinality(fence) from held) = 1 then (select fence[1] from held)
                     else ((select fence from held))[width_bucket(j.id, (select id from held))] end
       and j.followers is null  -- when unfollowed
       and j.followers = :bits::integer  -- when bits
    returning j.*, width_bucket(j.id, (select id from held)) as n),
kept as (
    insert into holdfast_finished
        (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays,
         priority, bucket, outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress,
         result, errors, followers, place)
    select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts,
           lease_ms, replays, priority, bucket,
           case when cardinality(:outcome::text[]) = 1 then (:outcome::text[])[1] else (:outcome::text[])[n] end,
           queue, kind, key, unique_key, leased_by, (:fingerprint::text[])[n], payload, headers, progress,
           (:result::text[])[n]::json,
           case when (:error::text[])[n] is null then errors
                else coalesce(errors, '[]'::jsonb) || (:error::text[])[n]::jsonb end,
           followers, place
      from gone
    returning id)
select id::text from kept where (select count(*) from kept) < (select cardinality(id) from held)
union all
select null from held where (select count(*) from kept) = cardinality(id);

-- drop: delete leased jobs that leave no finished row (retention 0), and note their ids for repeated enqueues.
-- Fences and the answer as in finish. The batch is noted as it came: an id in it that was not deleted does no harm,
-- because its job has a fence above 0 wherever it lives. A hundred ids fit into a row without being compressed and
-- stored elsewhere, which for 500 of them took 1 ms of the server's CPU beside the 2 that the delete took; five rows
-- took 0.3.
-- bind: once fence
with held as materialized (select :id::text::uuid[] as id, :fence::text::bigint[] as fence),
gone as (
    delete from holdfast_jobs j
     where j.id = any ((select id from held)::uuid[])
       and j.id = ((select id from held))[width_bucket(j.id, (select id from held))]
       and j.fence = case when (select cardinality(fence) from held) = 1 then (select fence[1] from held)
                     else ((select fence from held))[width_bucket(j.id, (select id from held))] end
       and j.followers is null  -- when unfollowed
       and j.followers = :bits::integer  -- when bits
    returning j.id),
noted as (
    insert into holdfast_dropped (at, ids)
    select :now, id[n : (n + 99)]
      from (select id, generate_series(1, cardinality(id), 100) as n from held where exists (select 1 from gone)) h)
select id::text from gone where (select count(*) from gone) < (select cardinality(id) from held)
union all
select null from held where (select count(*) from gone) = cardinality(id);

-- finish_one: move a leased job to the finished table as done, and answer with its id.
-- Completions go one by one: this takes the server two thirds of what finish takes for a batch of one.
-- With `or_fail` it fails where it finds nothing to move, so that a COMMIT behind it in the same message is not run.
with gone as (
    delete from holdfast_jobs
     where id = :id::text::uuid and fence = :fence::bigint and followers is null
    returning *),
kept as (
    insert into holdfast_finished
        (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays,
         priority, bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, result, errors,
         place)
    select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts, lease_ms, replays,
           priority, bucket, 'done', queue, kind, key, unique_key, leased_by, payload, headers, progress,
           :result::text::json, errors, place
      from gone
    returning id)
select id::text from kept
union all select concat('holdfast_ended is ', count(*))::boolean::text from kept having count(*) = 0  -- when or_fail
;

-- drop_one: delete a leased job that leaves no finished row (retention 0), note its id, and answer with it.
-- `or_fail` as in finish_one.
with gone as (
    delete from holdfast_jobs
     where id = :id::text::uuid and fence = :fence::bigint and followers is null
    returning id),
noted as (
    insert into holdfast_dropped (at, ids) select :now, array[id] from gone)
select id::text from gone
union all select concat('holdfast_ended is ', count(*))::boolean::text from gone having count(*) = 0  -- when or_fail
;

-- followed: lock live jobs whose end has consequences, in the order of ids, and read what those ask for.
select id::text, fence, queue, kind, key, followers
  from holdfast_jobs
 where id = any ((select :ids::text::uuid[])::uuid[]) and followers is not null
 order by id
   for update;

-- jobs_lock: lock live jobs in the order of ids, and read what their ends may ask for.
select id::text, fence, queue, kind, key, coalesce(followers, 0)
  from holdfast_jobs
 where id = any ((select :ids::text::uuid[])::uuid[])
 order by id
   for update;

-- follow: say of live jobs that their end has one more consequence.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit::integer
 where id = any ((select :ids::text::uuid[])::uuid[])
returning id::text;

-- settled: tell which of these jobs are finished, with the fence they ended with, for a settle whose answer was lost.
select f.id, f.fence from holdfast_finished f where f.id = any ((select :ids::text::uuid[])::uuid[]);

-- live: tell which of these jobs are still in the live table, with the fence they have now.
select j.id, j.fence from holdfast_jobs j where j.id = any ((select :ids::text::uuid[])::uuid[]);

-- progress: store how far a leased job is.
update holdfast_jobs set progress = :progress where id = :id and fence = :fence returning id;

-- reap_pick: read leases that ran out, oldest first, and lock them; the flow decides what becomes of each.
select id, queue, kind, fence, attempts, max_attempts, leased_by, date_part('epoch', leased_at) * 1000000,
       date_part('epoch', lease_expires_at) * 1000000, cancel_requested, began, lapses, followers
  from holdfast_jobs
 where state = 'leased' and lease_expires_at < :now
   and lease_expires_at >= :now - :look_back_ms::bigint * interval '1 millisecond'  -- when look_back_ms
   and (:kinds::text[] is null or kind = any (:kinds::text[]))
   and not (id = any ((select :ids::text::uuid[])::uuid[]))
   and (followers is null or followers | :known::integer = :known::integer)
 order by lease_expires_at
 limit :limit
   for update skip locked  -- when lock
;

-- reap_behind: read and lock leases that stand behind others of their stint; the columns of reap_pick.
select id, queue, kind, fence, attempts, max_attempts, leased_by, date_part('epoch', leased_at) * 1000000,
       date_part('epoch', lease_expires_at) * 1000000, cancel_requested, began, lapses, followers
  from holdfast_jobs
 where id = any ((select :ids::text::uuid[])::uuid[])
   and followers | :known::integer = :known::integer
   for update skip locked;

-- reap_mark: raise the fence of leases that were picked.
-- So a late holder's write cannot be taken for the reaper's.
update holdfast_jobs set fence = least(fence, 9223372036854775806) + 1
 where id = any ((select :ids::text::uuid[])::uuid[]);

-- strays: read the leases that the table says a worker holds, except those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker and not (id = any ((select :ids::text::uuid[])::uuid[]))
   and (followers is null or followers | :known::integer = :known::integer);

-- stuck: read rows, written by hand, that no claim and no reaper can ever take, and why.
select id::text, case state when 'leased' then 'a lease without an end: lease_expires_at'
       else 'it waits for nothing: waits_for' end
  from holdfast_jobs
 where state = 'leased' and (lease_expires_at is null or lease_expires_at = 'infinity')
    or state = 'waiting' and waits_for is null
 limit :limit;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
with recursive hop as (
    (select outcome, queue from holdfast_finished order by outcome, queue limit 1)
    union all
    select n.outcome, n.queue
      from hop cross join lateral (
        select outcome, queue from holdfast_finished f
         where (f.outcome, f.queue) > (hop.outcome, hop.queue)
         order by outcome, queue limit 1) n)
select outcome, queue from hop;

-- prune: delete a chunk of finished rows older than their retention.
-- Runs are left out: they go with their journals, see `runs_old`.
delete from holdfast_finished
 where id = any (array(
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at < :now - :older_ms::bigint * interval '1 millisecond'
       and (followers is null or followers & 128 = 0)
     order by finished_at
     limit :limit
       for update skip locked))
returning id;

-- dropped_add: note the ids of jobs whose finished rows are gone.
insert into holdfast_dropped (at, ids) values (:now, :ids::text::uuid[]);

-- dropped_prune: delete a chunk of notes that no repeat can ask for any more.
delete from holdfast_dropped
 where ctid = any (array(
    select ctid from holdfast_dropped
     where at < :now - :older_ms::bigint * interval '1 millisecond'
     order by at
     limit :limit
       for update skip locked))
returning 1;

-- keys_prune: delete a chunk of idempotency keys past their window.
-- An array, because a join with the chunk may be planned so that the limit is counted anew for each row.
delete from holdfast_keys
 where ctid = any (array(
    select ctid from holdfast_keys
     where expires_at <= :now
     order by expires_at
     limit :limit
       for update skip locked))
returning key;

-- debounces_prune: delete a chunk of debounce keys whose job takes no more calls, once no call of theirs is repeated.
delete from holdfast_debounces
 where ctid = any (array(
    select d.ctid from holdfast_debounces d
     where d.changed_at < :now - :older_ms::bigint * interval '1 millisecond'
       and not exists (select 1 from holdfast_jobs j where j.id = d.job_id and j.fence = 0)
     order by d.changed_at
     limit :limit
       for update of d skip locked))
returning 1;

-- pauses_list: read which queues and kinds are paused, queues first.
select scope, name, since, paused_by, reason from holdfast_pauses
 order by scope desc, name;

-- said_look: read in one answer what is paused, and what is stored of queues; the columns of `queue_settings`.
select scope, name, date_part('epoch', since) * 1000000, paused_by, reason, null::text, null::integer, null::integer
  from holdfast_pauses
 union all
select 'stored', name, date_part('epoch', changed_at) * 1000000, changed_by, null, settings::text, version, held
  from holdfast_queues;

-- position_read: read how far a stream has been received.
select value from holdfast_meta where key = :name;

-- position_write: note how far a stream has been received; what others have noted beyond that stays.
insert into holdfast_meta (key, value) values (:name, :position)
on conflict (key) do update set value = greatest(holdfast_meta.value, excluded.value);

-- live_buckets: tell which of these buckets have live jobs.
select distinct bucket from holdfast_jobs
 where bucket = any ((select :buckets::text::smallint[])::smallint[])
   and not queue = any ((select :apart::text[])::text[]);

-- live_queues: tell which of these queues have live jobs.
select distinct queue from holdfast_jobs where queue = any ((select :queues::text[])::text[]);
