-- Holdfast's queries for PostgreSQL: what people look up and do by hand.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/postgres.sql.

-- fragment state_filter: conditions on the state of live jobs, which have neither a group nor an end.
   and state = any (:states::text[])  -- when states
   and state = 'dead'  -- when only_dead
   and null::text = :group  -- when group
   and null::timestamptz >= :finished_after::timestamptz  -- when finished_after
   and null::timestamptz < :finished_before::timestamptz  -- when finished_before

-- fragment outcome_filter: the same conditions on finished jobs.
   and outcome = any (:states::text[])  -- when states
   and outcome = 'dead'  -- when only_dead
   and fingerprint = :group  -- when group
   and finished_at >= :finished_after::timestamptz  -- when finished_after
   and finished_at < :finished_before::timestamptz  -- when finished_before

-- fragment job_filter: conditions on what live and finished jobs share.
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and key = :key  -- when key
   and leased_by = :worker  -- when worker
   and id = any (:ids::uuid[])  -- when ids
   and created_at >= :created_after::text::timestamptz  -- when created_after
   and created_at < :created_before::text::timestamptz  -- when created_before
   and left(queue, 6) = 'route:'  -- when outbox
   and left(queue, 6) = 'route:' and payload ->> 'type' = :event  -- when event
   -- when error:
   and strpos(lower(concat(errors -> -1 ->> 'type', ': ', errors -> -1 ->> 'message')), lower(:error::text)) > 0
   -- end

-- jobs_list: read live and finished jobs as one list; a line marked `when` is there only if its parameter is given.
-- Order and limit stand in each arm: without them PostgreSQL may read all that is behind the horizon and sort it.
select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload::text, headers::text,
       progress::text, result::text, errors::text, date_part('epoch', available_at) * 1000000,
       date_part('epoch', created_at) * 1000000, date_part('epoch', leased_at) * 1000000, date_part('epoch',
       lease_expires_at) * 1000000, leased_by,
       date_part('epoch', finished_at) * 1000000, fingerprint, replays, cancel_requested, lapses, waits_for
  from ((select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
                progress, null::json as result, errors, available_at, created_at, leased_at, lease_expires_at,
                leased_by, null::timestamptz as finished_at, null::text as fingerprint, replays, cancel_requested,
                lapses, waits_for
           from holdfast_jobs
          where true
            -- insert state_filter
            -- insert job_filter
            and id < :older_than  -- when older_than
            and id > :newer_than  -- when newer_than
            and state = 'leased' and lease_expires_at < :now  -- when expired
          order by
                lease_expires_at,  -- when expired
                id desc,  -- when newest
                id
          limit :limit)
         union all
        (select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
                progress, result, errors, available_at, created_at, leased_at, null::timestamptz, leased_by,
                finished_at, fingerprint, replays, false, 0, null
           from holdfast_finished
          where true
            -- insert outcome_filter
            -- insert job_filter
            and id < :older_than  -- when older_than
            and id > :newer_than  -- when newer_than
            and false  -- when expired
            and false  -- when only_live
          order by
                id desc,  -- when newest
                id
          limit :limit)) j
 order by
       lease_expires_at,  -- when expired
       id desc,  -- when newest
       id
 limit :limit;

-- jobs_horizon: name the job that has this many newer ones in its table, of live or finished jobs the newer one.
-- Without `newest` it is the other way round: that many older ones, and the older of both.
select id
  from (select id
          from (select id
                  from holdfast_jobs
                 where true
                   and id < :older_than  -- when older_than
                   and id > :newer_than  -- when newer_than
                 order by
                       id desc,  -- when newest
                       id
                 limit 1 offset :window) l
         union all
        select id
          from (select id
                  from holdfast_finished
                 where true
                   and id < :older_than  -- when older_than
                   and id > :newer_than  -- when newer_than
                   and false  -- when only_live
                 order by
                       id desc,  -- when newest
                       id
                 limit 1 offset :window) f) h
 order by
       id desc,  -- when newest
       id
 limit 1;

-- finished_horizon: name the finished job that has this many newer ones, or older ones without `newest`.
-- With `only_dead`, among the dead letters; with `group`, among those of a group.
select id
  from holdfast_finished
 where true
   and outcome = 'dead'  -- when only_dead
   and fingerprint = :group  -- when group
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by
       id desc,  -- when newest
       id
 limit 1 offset :window;

-- letters_list: read dead letters by id; the columns and the lines marked `when` as in jobs_list.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload::text,
       headers::text, progress::text, result::text, errors::text, date_part('epoch', available_at) * 1000000,
       date_part('epoch', created_at) * 1000000, date_part('epoch', leased_at) * 1000000, null::float8, leased_by,
       date_part('epoch', finished_at) * 1000000, fingerprint, replays, false, 0, null::text
  from holdfast_finished
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by
       id desc,  -- when newest
       id
 limit :limit;

-- finished_ids: name the newest finished jobs; the lines marked `when` as in jobs_list.
select id
  from holdfast_finished
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id > :newer_than  -- when newer_than
 order by id desc
 limit :limit;

-- letters_count: count dead letters, no more than :most; the lines marked `when` as in jobs_list.
select count(*)
  from (select 1
          from holdfast_finished
         where true
           -- insert outcome_filter
           -- insert job_filter
           and id < :older_than  -- when older_than
           and id > :newer_than  -- when newer_than
         limit :most) c;

-- jobs_read: read jobs by their ids, live and finished, each as one JSON text with the columns of jobs_list.
-- One text, because a connection of the application's may decode what else there is in a way of its own.
select json_build_array(
           id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload::text,
           headers::text, progress::text, result::text, errors::text, date_part('epoch', available_at) * 1000000,
           date_part('epoch', created_at) * 1000000, date_part('epoch', leased_at) * 1000000,
           date_part('epoch', lease_expires_at) * 1000000, leased_by, date_part('epoch', finished_at) * 1000000,
           fingerprint, replays, cancel_requested, lapses, waits_for)::text
  from (select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, null::json as result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
               null::timestamptz as finished_at, null::text as fingerprint, replays, cancel_requested, lapses, waits_for
          from holdfast_jobs
         where id = any ((select :ids::text::uuid[])::uuid[])
         union all
        select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, result, errors, available_at, created_at, leased_at, null::timestamptz, leased_by,
               finished_at, fingerprint, replays, false, 0, null
          from holdfast_finished
         where id = any ((select :ids::text::uuid[])::uuid[])) j;

-- jobs_count: count live and finished jobs; the lines marked `when` as in jobs_list.
-- With `most`, no more than that many of each are counted.
select
    (select count(*)
       from (select 1
               from holdfast_jobs
              where true
                -- insert state_filter
                -- insert job_filter
                and id < :older_than  -- when older_than
                and id > :newer_than  -- when newer_than
              limit :most  -- when most
            ) c) +
    (select count(*)
       from (select 1
               from holdfast_finished
              where true
                -- insert outcome_filter
                -- insert job_filter
                and id < :older_than  -- when older_than
                and id > :newer_than  -- when newer_than
                and false  -- when only_live
              limit :most  -- when most
            ) c);

-- queue_counts: count live jobs by queue, kind and state.
select queue, kind, count(*) filter (where state = 'pending'),
       count(*) filter (where state = 'pending' and available_at <= :now),
       count(*) filter (where state = 'pending' and available_at > :now),
       count(*) filter (where state = 'leased'), count(*) filter (where state = 'waiting')
  from holdfast_jobs
 group by queue, kind;

-- finished_counts: count the latest finished jobs of a queue with one outcome, by kind; no more of them than :limit.
select kind, count(*)
  from (select kind
          from holdfast_finished
         where outcome = :outcome and queue = :queue
         order by finished_at desc
         limit :limit) f
 group by kind;

-- finished_latest: read the jobs of a queue that ended last with one outcome, the latest first; `when` as in jobs_list.
-- They are among the latest :window ones.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload::text,
       headers::text, progress::text, result::text, errors::text, date_part('epoch', available_at) * 1000000,
       date_part('epoch', created_at) * 1000000, date_part('epoch', leased_at) * 1000000, null::float8, leased_by,
       date_part('epoch', finished_at) * 1000000, fingerprint, replays, false, 0, null::text
  from holdfast_finished
 where id = any (array(
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at >= :finished_after::timestamptz  -- when finished_after
     order by finished_at desc
     limit :window))
   -- insert outcome_filter
   -- insert job_filter
 order by finished_at desc
 limit :limit;

-- live_any: tell whether there is a live job.
select 1 from holdfast_jobs limit 1;

-- queue_lags: count the due jobs of each queue and tell for how many microseconds the first has been due.
-- With `unpaused`, what is paused is left out.
select queue, count(*), (extract(epoch from :now - min(available_at)) * 1000000)::bigint
  from holdfast_jobs j
 where state = 'pending' and available_at <= :now
   -- when unpaused:
   and not exists (
       select 1 from holdfast_pauses p
        where p.scope = 'queue' and p.name = j.queue or p.scope = 'kind' and p.name = j.kind)
   -- end
 group by queue
 order by 3 desc, 1;

-- dead_groups: group dead letters by kind and fingerprint, with the error of the latest; `when` as in jobs_list.
-- The flow says from which id on, so that no more than a number of them are looked at.
select g.fingerprint, g.kind, g.count, g.queues, f.errors -> -1 ->> 'type', f.errors -> -1 ->> 'message',
       g.first_at, g.last_at, f.id
  from (select fingerprint, kind, count(*) as count, json_agg(distinct queue)::text as queues,
               min(finished_at) as first_at, max(finished_at) as last_at,
               (array_agg(id order by finished_at desc, id desc))[1] as latest
          from (select fingerprint, kind, queue, finished_at, id
                  from holdfast_finished
                 where true
                   -- insert outcome_filter
                   -- insert job_filter
                   and id > :newer_than  -- when newer_than
               ) d
         group by fingerprint, kind
         order by count(*) desc, max(finished_at) desc
         limit :limit) g
  join holdfast_finished f on f.id = g.latest
 order by g.count desc, g.last_at desc;

-- job_state: tell where jobs are in their lives; what is finished comes last.
select id::text, state from holdfast_jobs where id = any ((select :ids::text::uuid[])::uuid[])
union all
select id::text, outcome from holdfast_finished where id = any ((select :ids::text::uuid[])::uuid[]);

-- live_look: read the live jobs that an action by hand may mean, by id; `when` as in jobs_list. Nothing is locked.
select id::text, state, queue, kind, key, leased_by, waits_for, fence, followers, priority,
       (date_part('epoch', available_at) * 1000000)::text
  from holdfast_jobs
 where true
   and state = any (:states::text[])  -- when states
   and id = any ((select :among::text::uuid[])::uuid[])  -- when among
   -- insert job_filter
   and id > :newer_than::text::uuid  -- when newer_than
 order by id
 limit :limit::bigint;

-- live_lock: lock these live jobs in the order of ids and read those that are still meant; columns as in live_look.
-- With `skip_locked`, those that somebody has locked are left out: the holder may wait for a line that is locked here.
-- Apart from the conditions, so that the planner finds the rows by primary key.
with locked as materialized (
    select id, state, queue, kind, key, leased_by, waits_for, fence, followers, priority, available_at, created_at,
           payload, errors
      from holdfast_jobs
     where id = any ((select :among::text::uuid[])::uuid[])
     order by id
       for update
       skip locked  -- when skip_locked
)
select id::text, state, queue, kind, key, leased_by, waits_for, fence, followers, priority,
       (date_part('epoch', available_at) * 1000000)::text
  from locked
 where true
   and state = any (:states::text[])  -- when states
   -- insert job_filter
 order by id;

-- run_now: make a pending or waiting job due, and wake its queue's workers at commit.
with changed as (
    update holdfast_jobs
       set available_at = least(case when state = 'waiting' then null else available_at end, :now),
           state = 'pending', waits_for = null
     where id = :id and state <> 'leased'
    returning queue, kind)
select queue, kind, case when :channel::text is not null then pg_notify(:channel, queue)::text end from changed;

-- cancel_pending: move pending and waiting jobs to the finished table as cancelled.
-- A claim that came first leaves nothing to move. The finished row of a job that lives a second time stays as it was.
with gone as (
    delete from holdfast_jobs
     where id = any ((select :ids::text::uuid[])::uuid[]) and state <> 'leased'
    returning *),
kept as (
    insert into holdfast_finished
        (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays,
         priority, bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, errors,
         followers, place)
    select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts, lease_ms, replays,
           priority, bucket, 'cancelled', queue, kind, key, unique_key, leased_by, payload, headers, progress, errors,
           followers, place
      from gone
    on conflict do nothing)
select id::text, queue, kind, key, fence, followers from gone order by id;

-- cancel_leased: ask the holders of jobs to stop.
with asked as (
    update holdfast_jobs set cancel_requested = true
     where id = any ((select :ids::text::uuid[])::uuid[]) and state = 'leased'
    returning id, queue, kind, leased_by, fence)
select id::text, queue, kind, leased_by, fence,
       case when :channel::text is not null then pg_notify(:channel, queue)::text end
  from asked;

-- change_live: change what is said of jobs that nobody holds and whose rows are locked; wake their queues at commit.
-- With `joins_anew`, they stand in no line any more, and no lease of theirs counts anywhere.
with changed as (
    update holdfast_jobs
       set priority = coalesce(:priority::smallint, priority), queue = coalesce(:to_queue::text, queue)
           , available_at = :run_at::text::timestamptz  -- when run_at
           , available_at = :now + :delay_ms::bigint * interval '1 millisecond'  -- when delay_ms
           -- when joins_anew:
           , state = case when waits_for = 'line' then 'pending' else state end,
           waits_for = nullif(waits_for, 'line'), followers = nullif(followers & ~ :mask::integer, 0)
           -- end
     where id = any ((select :ids::text::uuid[])::uuid[]) and state <> 'leased'
    returning queue, state, available_at)
select case when :channel::text is not null and state = 'pending' and available_at <= :now
            then pg_notify(:channel, queue)::text end
  from changed;

-- finished_pick: lock finished jobs for an action by hand, the oldest first; `when` as in jobs_list.
-- No SKIP LOCKED: a second replay waits for the first and goes on behind it, and both lock in the order of ids.
select id, outcome, queue, kind, unique_key, attempts, replays, errors -> -1 ->> 'type', errors -> -1 ->> 'message',
       key, fence, followers
  from holdfast_finished
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by id
 limit :limit
   for update;

-- replay: move finished jobs back to their queue as new, except those whose unique key is live.
-- Each queue is woken once.
-- Inserted in the order of unique keys, as enqueue does, so that two batches never wait for each other in a circle.
with back as (
    insert into holdfast_jobs
        (id, fence, available_at, created_at, max_attempts, lease_ms, replays, priority, bucket, queue, kind, key,
         unique_key, payload, headers, progress, errors, followers, place)
    select id, least(fence, 9223372036854775806) + 1, :now, created_at, max_attempts, lease_ms,
           least(replays, 2147483646) + 1, priority, bucket, queue, kind, key, unique_key, payload, headers, progress,
           errors, followers, place
      from holdfast_finished
     where id = any (:ids::uuid[]) and outcome in ('dead', 'cancelled')
     order by kind, unique_key, id
    on conflict do nothing
    returning id, queue),
gone as (
    delete from holdfast_finished where id = any (array(select id from back)))
select id, case when :channel::text is not null then pg_notify(:channel, queue)::text end from back;

-- discard: delete finished jobs for good.
delete from holdfast_finished
 where id = any (:ids::uuid[]) and outcome in ('dead', 'cancelled')
returning id;

-- audit_add: record what was done to jobs by hand.
insert into holdfast_audit (at, action, job_id, actor, detail)
select :now, u.action, u.job_id, u.actor, u.detail::json
  from unnest(:action::text[], :job_id::text::uuid[], :actor::text[], :detail::text[])
       as u (action, job_id, actor, detail);

-- audit_list: read what was done by hand, the latest first.
select at, action, job_id, actor, detail::text
  from holdfast_audit
 where true
   and job_id = :job_id  -- when job_id
   and actor = :actor  -- when actor
   and at >= :since  -- when since
   and at < :before  -- when before
 order by at desc, job_id desc
 limit :limit;

-- audit_horizon: tell when the line was written that has this many later ones.
select at
  from holdfast_audit
 where true
   and at < :before  -- when before
 order by at desc
 limit 1 offset :window;

-- audit_prune: delete a chunk of lines about what was done by hand long ago.
delete from holdfast_audit
 where ctid = any (array(
    select ctid from holdfast_audit
     where at < :now - :older_ms::bigint * interval '1 millisecond'
     order by at
     limit :limit
       for update skip locked))
returning 1;

-- audit_older: count the lines that audit_prune would delete, no more than :most.
select count(*)
  from (select 1 from holdfast_audit where at < :now - :older_ms::bigint * interval '1 millisecond'
         limit :most) c;

-- pause_add: pause a queue or a kind, unless it is paused already.
insert into holdfast_pauses (scope, name, since, paused_by, reason)
values (:scope, :name, :now, :actor, :reason)
on conflict do nothing
returning name;

-- pause_remove: let workers claim from a queue, or jobs of a kind, again.
delete from holdfast_pauses where scope = :scope and name = :name returning name;

-- pauses_due: count the due jobs of what is paused, and tell for how many microseconds the first has been due.
select p.scope, p.name, count(*), (extract(epoch from :now - min(j.available_at)) * 1000000)::bigint
  from holdfast_pauses p
  join holdfast_jobs j on case p.scope when 'queue' then j.queue else j.kind end = p.name
 where j.state = 'pending' and j.available_at <= :now
 group by p.scope, p.name
 order by p.scope desc, p.name;

-- long_transactions: find what holds snapshots older than a limit, and so keeps dead rows from being cleaned away.
-- Transactions of other databases hold back none of our rows; a slot's or a standby's snapshot does, wherever it is.
select 'session', coalesce(usename::text, ''), pid, extract(epoch from clock_timestamp() - xact_start)::float8,
       state, application_name, left(query, 200), query_start, age(backend_xmin)
  from pg_stat_activity
 where (datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
        and xact_start < clock_timestamp() - :older_ms::bigint * interval '1 millisecond')
    or (backend_type = 'walsender' and age(backend_xmin) >= :xids::integer)
union all
select 'prepared', gid, null, extract(epoch from clock_timestamp() - prepared)::float8,
       'prepared', null, null, prepared, age(transaction)
  from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - :older_ms::bigint * interval '1 millisecond'
union all
select 'slot', slot_name::text, active_pid, null,
       case when active then 'active' else 'inactive' end, plugin::text, null, null, age(coalesce(xmin, catalog_xmin))
  from pg_replication_slots
 where (database is null or database = current_database()) and age(coalesce(xmin, catalog_xmin)) >= :xids::integer
 order by 4 desc nulls last, 9 desc nulls last;

-- table_health: read the sizes of our tables; rows are estimates of the statistics collector.
select replace(t.name, '"', ''), s.n_live_tup, s.n_dead_tup, s.last_autovacuum, pg_total_relation_size(s.relid)
  from (select null::text as name where false
        union all select 'holdfast_each'  -- each table
       ) t
  left join pg_stat_all_tables s on s.relid = to_regclass(t.name)
 order by 1;

-- missing_indexes: name the indexes of the migrations that are gone or not valid.
select w.name
  from (select null::text as name where false
        union all select 'holdfast_each'  -- each index
       ) w
 where not exists (
    select 1
      from pg_class c join pg_index i on i.indexrelid = c.oid
     where c.relname = w.name and i.indisvalid
       and c.relnamespace = (select relnamespace from pg_class where oid = to_regclass('holdfast_meta')))
 order by 1;

-- listeners: read the sessions in which workers listen for wake-ups.
select pid, state, host(client_addr), backend_start, extract(epoch from clock_timestamp() - state_change)::float8
  from pg_stat_activity
 where datname = current_database() and application_name = 'holdfast-listener'
 order by backend_start, pid;

-- standbys: tell whether the server takes no writes, and whether commits wait for a standby; count those that follow.
-- All of them, those that commits wait for, and those of which this role may not see more.
select current_setting('transaction_read_only') = 'on',
       current_setting('synchronous_standby_names') <> ''
           and current_setting('synchronous_commit') not in ('off', 'local'),
       count(*), count(*) filter (where sync_state in ('sync', 'quorum')), count(*) filter (where sync_state is null)
  from pg_stat_replication r
 where state is distinct from 'backup' and not exists (
    select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical');

-- database_file: read the path of the file that holds the tables.
select null::text;
