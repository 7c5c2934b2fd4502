-- Holdfast's queries for MySQL and MariaDB: what people look up and do by hand.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/mysql.sql.

-- fragment state_filter: conditions on the state of live jobs, which have neither a group nor an end.
   and state in (:states)  -- when states
   and state = 'dead'  -- when only_dead
   and null = :group  -- when group
   and null >= :finished_after  -- when finished_after
   and null < :finished_before  -- when finished_before

-- fragment outcome_filter: the same conditions on finished jobs.
   and outcome in (:states)  -- when states
   and outcome = 'dead'  -- when only_dead
   and fingerprint = :group  -- when group
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before

-- fragment job_filter: conditions on what live and finished jobs share.
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and `key` = :key  -- when key
   and leased_by = :worker  -- when worker
   -- when ids:
   and id in (
       select u.id
         from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)
   -- end
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and left(queue, 6) = 'route:'  -- when outbox
   -- when event:
   and left(queue, 6) = 'route:' and json_valid(payload) and json_unquote(json_extract(payload, '$.type')) = :event
   -- end
   -- when error:
   and json_valid(errors)
   and instr(
       lower(concat(
           json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ',
           json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))),
       lower(:error)) > 0
   -- end

-- jobs_list: read live and finished jobs as one list; a line marked `when` is there only if its parameter is given.
-- Order and limit stand in each arm: they are not pushed into a union.
select id, state, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
       finished_at, fingerprint, replays, cancel_requested, lapses, waits_for
  from ((select id, state, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
                progress, null as result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
                null as finished_at, null as fingerprint, replays, cancel_requested, lapses, waits_for
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
        (select id, outcome, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
                progress, result, errors, available_at, created_at, leased_at, null, leased_by,
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
-- Differs: there is no index of groups, so that of letters is gone through, whatever their groups.
select id
  from holdfast_finished
       force index (holdfast_finished_letters_idx)  -- when only_dead
 where true
   and outcome = 'dead'  -- when only_dead
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by
       id desc,  -- when newest
       id
 limit 1 offset :window;

-- letters_list: read dead letters by id; the columns and the lines marked `when` as in jobs_list.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, null, leased_by,
       finished_at, fingerprint, replays, false, 0, null
  from holdfast_finished force index (holdfast_finished_letters_idx)
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
-- Differs: the index is named, because MySQL may take holdfast_finished_age_idx, and sort.
select id
  from holdfast_finished
       force index (holdfast_finished_letters_idx)  -- when only_dead
       force index (primary)  -- when states
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id > :newer_than  -- when newer_than
 order by id desc
 limit :limit;

-- letters_count: count dead letters, no more than :most; the lines marked `when` as in jobs_list.
select count(*)
  from (select 1
          from holdfast_finished force index (holdfast_finished_letters_idx)
         where true
           -- insert outcome_filter
           -- insert job_filter
           and id < :older_than  -- when older_than
           and id > :newer_than  -- when newer_than
         limit :most) c;

-- jobs_read: read jobs by their ids, live and finished, each as one JSON text with the columns of jobs_list.
-- One text, because a connection of the application's may decode what else there is in a way of its own.
-- Differs: JSON has no times; they are written as microseconds since 1970.
select json_array(
           j.id, j.state, j.queue, j.kind, j.priority, j.attempts, j.max_attempts, j.fence, j.`key`, j.unique_key,
           j.payload, j.headers, j.progress, null, j.errors, timestampdiff(microsecond, '1970-01-01', j.available_at),
           timestampdiff(microsecond, '1970-01-01', j.created_at),
           timestampdiff(microsecond, '1970-01-01', j.leased_at),
           timestampdiff(microsecond, '1970-01-01', j.lease_expires_at), j.leased_by, null, null, j.replays,
           j.cancel_requested, j.lapses, j.waits_for)
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 union all
select json_array(
           f.id, f.outcome, f.queue, f.kind, f.priority, f.attempts, f.max_attempts, f.fence, f.`key`, f.unique_key,
           f.payload, f.headers, f.progress, f.result, f.errors,
           timestampdiff(microsecond, '1970-01-01', f.available_at),
           timestampdiff(microsecond, '1970-01-01', f.created_at),
           timestampdiff(microsecond, '1970-01-01', f.leased_at), null, f.leased_by,
           timestampdiff(microsecond, '1970-01-01', f.finished_at), f.fingerprint, f.replays, 0, 0, null)
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

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
select queue, kind, sum(state = 'pending'),
       sum(state = 'pending' and available_at <= :now),
       sum(state = 'pending' and available_at > :now),
       sum(state = 'leased'), sum(state = 'waiting')
  from holdfast_jobs
 group by queue, kind;

-- finished_counts: count the latest finished jobs of a queue with one outcome, by kind; no more of them than :limit.
select kind, count(*)
  from (select kind
          from holdfast_finished force index (holdfast_finished_age_idx)
         where outcome = :outcome and queue = :queue
         order by finished_at desc
         limit :limit) f
 group by kind;

-- finished_latest: read the jobs of a queue that ended last with one outcome, the latest first; `when` as in jobs_list.
-- They are among the latest :window ones.
-- Differs: no limit inside of `in`.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, null, leased_by,
       finished_at, fingerprint, replays, false, 0, null
  from (select id as job
          from holdfast_finished force index (holdfast_finished_age_idx)
         where outcome = :outcome and queue = :queue
           and finished_at >= :finished_after  -- when finished_after
         order by finished_at desc
         limit :window) w
 straight_join holdfast_finished force index (primary) on id = w.job
 where true
   -- insert outcome_filter
   -- insert job_filter
 order by finished_at desc
 limit :limit;

-- live_any: tell whether there is a live job.
select 1 from holdfast_jobs limit 1;

-- queue_lags: count the due jobs of each queue and tell for how many microseconds the first has been due.
-- With `unpaused`, what is paused is left out.
select queue, count(*), timestampdiff(microsecond, min(available_at), :now)
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
-- Differs: no ordered aggregates; the time written in front puts the latest id at the end.
select g.fingerprint, g.kind, g.letters, g.queues,
       if(json_valid(f.errors),
          json_unquote(json_extract(f.errors, concat('$[', json_length(f.errors) - 1, '].type'))), null),
       if(json_valid(f.errors),
          json_unquote(json_extract(f.errors, concat('$[', json_length(f.errors) - 1, '].message'))), null),
       g.first_at, g.last_at, f.id
  from (select fingerprint, kind, count(*) as letters,
               concat('[', group_concat(distinct json_quote(queue)), ']') as queues,
               min(finished_at) as first_at, max(finished_at) as last_at,
               convert(substr(max(concat(cast(finished_at as char(26)), id)), 27) using ascii)
                   collate ascii_bin as latest
          from (select fingerprint, kind, queue, finished_at, id
                  from holdfast_finished force index (holdfast_finished_letters_idx)
                 where true
                   -- insert outcome_filter
                   -- insert job_filter
                   and id > :newer_than  -- when newer_than
               ) d
         group by fingerprint, kind
         order by count(*) desc, max(finished_at) desc
         limit :limit) g
  join holdfast_finished f on f.id = g.latest
 order by g.letters desc, g.last_at desc;

-- job_state: tell where jobs are in their lives; what is finished comes last.
select j.id, j.state
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
union all
select f.id, f.outcome
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- live_look: read the live jobs that an action by hand may mean, by id; `when` as in jobs_list. Nothing is locked.
select id, state, queue, kind, `key`, leased_by, waits_for, fence, followers, priority,
       timestampdiff(microsecond, '1970-01-01', available_at)
  from holdfast_jobs
 where true
   and state in (:states)  -- when states
   -- when among:
   and id in (
       select u.job_id
         from json_table(:among, '$[*]' columns (job_id char(36) character set ascii collate ascii_bin path '$')) u)
   -- end
   -- insert job_filter
   and id > :newer_than  -- when newer_than
 order by id
 limit :limit;

-- live_lock: lock these live jobs in the order of ids and read those that are still meant; columns as in live_look.
-- With `skip_locked`, those that somebody has locked are left out: the holder may wait for a line that is locked here.
-- Differs: the list is sorted already, and its order is that of the locks.
select id, state, queue, kind, `key`, leased_by, waits_for, fence, followers, priority,
       timestampdiff(microsecond, '1970-01-01', available_at)
  from json_table(:among, '$[*]' columns (job_id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.job_id
 where true
   and state in (:states)  -- when states
   -- insert job_filter
   for update /*!80001 of j */
   skip locked  -- when skip_locked
;

-- run_now: make a pending or waiting job due.
select queue, kind from holdfast_jobs where id = :id and state <> 'leased' for update;
update holdfast_jobs
   set available_at = case when state = 'waiting' then :now else least(available_at, :now) end,
       state = 'pending', waits_for = null
 where id = :id and state <> 'leased';

-- cancel_pending: move pending and waiting jobs to the finished table as cancelled.
-- A claim that came first leaves nothing to move. The finished row of a job that lives a second time stays as it was.
-- Differs: no writing CTE, so copy and delete are statements of one transaction.
select j.id, j.queue, j.kind, j.`key`, j.fence, j.followers
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state <> 'leased'
   for update /*!80001 of j */;
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, `key`, unique_key, leased_by, payload, headers, progress, errors, followers)
select j.id, j.fence, j.available_at, j.created_at, j.leased_at, :now, j.attempts, j.max_attempts,
       j.lease_ms, j.replays, j.priority, j.bucket, 'cancelled', j.queue, j.kind, j.`key`, j.unique_key, j.leased_by,
       j.payload, j.headers, j.progress, j.errors, j.followers
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
on duplicate key update id = holdfast_finished.id;
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- cancel_leased: ask the holders of jobs to stop.
select j.id, j.queue, j.kind, j.leased_by, j.fence
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state = 'leased'
   for update /*!80001 of j */;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.cancel_requested = true;

-- change_live: change what is said of jobs that nobody holds and whose rows are locked.
-- With `joins_anew`, they stand in no line any more, and no lease of theirs counts anywhere.
-- Differs: an assignment sees what those before it have written, so the state comes before what it waits for.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.state <> 'leased'
   set j.priority = coalesce(:priority, j.priority), j.queue = coalesce(:to_queue, j.queue)
       , j.available_at = cast(:run_at as datetime(6))  -- when run_at
       , j.available_at = :now + interval :delay_ms * 1000 microsecond  -- when delay_ms
       -- when joins_anew:
       , j.state = case when j.waits_for = 'line' then 'pending' else j.state end,
       j.waits_for = nullif(j.waits_for, 'line'), j.followers = nullif(j.followers & ~ :mask, 0)
       -- end
;

-- finished_pick: lock finished jobs for an action by hand, the oldest first; `when` as in jobs_list.
-- No SKIP LOCKED: a second replay waits for the first and goes on behind it, and both lock in the order of ids.
select id, outcome, queue, kind, unique_key, attempts, replays,
       if(json_valid(errors),
          json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), null),
       if(json_valid(errors),
          json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))), null),
       `key`, fence, followers
  from holdfast_finished
       force index (holdfast_finished_letters_idx)  -- when only_dead
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by id
 limit :limit
   for update;

-- replay: move finished jobs back to their queue as new, except those whose unique key is live.
-- Inserted in the order of unique keys, as enqueue does, so that two batches never wait for each other in a circle.
-- Differs: no writing CTE; what is in the live table then, the first statement has put there.
insert into holdfast_jobs
    (id, fence, available_at, created_at, max_attempts, lease_ms, replays, priority, bucket, queue, kind, `key`,
     unique_key, payload, headers, progress, errors, followers)
select f.id, least(f.fence, 9223372036854775806) + 1, :now, f.created_at, f.max_attempts, f.lease_ms,
       least(f.replays, 2147483646) + 1, f.priority, f.bucket, f.queue, f.kind, f.`key`, f.unique_key, f.payload,
       f.headers, f.progress, f.errors, f.followers
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id
 where f.outcome in ('dead', 'cancelled')
 order by f.kind, f.unique_key, f.id
on duplicate key update id = holdfast_jobs.id;
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;
delete f
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- discard: delete finished jobs for good.
select f.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id
 where f.outcome in ('dead', 'cancelled')
   for update /*!80001 of f */;
delete f
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- audit_add: record what was done to jobs by hand.
insert into holdfast_audit (at, action, job_id, actor, detail)
select :now, u.action, u.job_id, u.actor, u.detail
  from json_table(:batch, '$[*]' columns (
        action varchar(40) path '$[0]', job_id char(36) character set ascii collate ascii_bin path '$[1]',
        actor longtext character set utf8mb4 path '$[2]', detail longtext character set utf8mb4 path '$[3]')) u;

-- audit_list: read what was done by hand, the latest first.
-- Differs: the index of times ends with the primary key; in any other order all lines would be sorted.
select at, action, job_id, actor, detail
  from holdfast_audit
       force index (holdfast_audit_at_idx)  -- when by_time
 where true
   and job_id = :job_id  -- when job_id
   and actor = :actor  -- when actor
   and at >= :since  -- when since
   and at < :before  -- when before
 order by at desc, id desc
 limit :limit;

-- audit_horizon: tell when the line was written that has this many later ones.
select at
  from holdfast_audit force index (holdfast_audit_at_idx)
 where true
   and at < :before  -- when before
 order by at desc
 limit 1 offset :window;

-- audit_prune: delete a chunk of lines about what was done by hand long ago.
select id from holdfast_audit force index (holdfast_audit_at_idx)
 where at < :now - interval :older_ms * 1000 microsecond
 order by at
 limit :limit
   for update skip locked;
delete a
  from json_table(:found, '$[*]' columns (id bigint path '$')) u
 straight_join holdfast_audit a force index (primary) on a.id = u.id;

-- audit_older: count the lines that audit_prune would delete, no more than :most.
select count(*)
  from (select 1 from holdfast_audit where at < :now - interval :older_ms * 1000 microsecond
         limit :most) c;

-- pause_add: pause a queue or a kind, unless it is paused already.
-- Differs: nothing returns what it wrote, so how many rows it wrote answers for it; here and in pause_remove.
-- bind: counted
insert into holdfast_pauses (scope, name, since, paused_by, reason)
values (:scope, :name, :now, :actor, :reason)
on duplicate key update name = holdfast_pauses.name;

-- pause_remove: let workers claim from a queue, or jobs of a kind, again.
-- bind: counted
delete from holdfast_pauses where scope = :scope and name = :name;

-- pauses_due: count the due jobs of what is paused, and tell for how many microseconds the first has been due.
select p.scope, p.name, count(*), timestampdiff(microsecond, min(j.available_at), :now)
  from holdfast_pauses p
  join holdfast_jobs j on case p.scope when 'queue' then j.queue else j.kind end = p.name
 where j.state = 'pending' and j.available_at <= :now
 group by p.scope, p.name
 order by p.scope desc, p.name;

-- long_transactions: find what holds snapshots older than a limit, and so keeps dead rows from being cleaned away.
-- Differs: needs the PROCESS privilege. Times of transactions are in the server's own time zone.
select 'session', coalesce(p.user, ''), t.trx_mysql_thread_id,
       timestampdiff(microsecond, t.trx_started, convert_tz(utc_timestamp(6), '+00:00', 'SYSTEM')) / 1000000,
       p.command, null, left(coalesce(t.trx_query, p.info), 200), null, null
  from information_schema.innodb_trx t
  left join information_schema.processlist p on p.id = t.trx_mysql_thread_id
 where t.trx_mysql_thread_id <> connection_id()
   and t.trx_started < convert_tz(utc_timestamp(6), '+00:00', 'SYSTEM') - interval :older_ms * 1000 microsecond
 order by 4 desc;

-- table_health: read the sizes of our tables.
-- Differs: rows are estimates of the optimizer's statistics.
select t.name, s.table_rows, null, null, s.data_length + s.index_length
  from (select null as name from dual where false
        union all select 'holdfast_each'  -- each table
       ) t
  left join information_schema.tables s on s.table_schema = database() and s.table_name = t.name
 order by 1;

-- missing_indexes: name the indexes of the migrations that are gone.
select w.name
  from (select null as name from dual where false
        union all select 'holdfast_each'  -- each index
       ) w
 where not exists (
    select 1 from information_schema.statistics s where s.table_schema = database() and s.index_name = w.name)
 order by 1;

-- listeners: read the sessions in which workers listen for wake-ups.
-- Differs: nobody listens; workers poll.
select null from dual where false;

-- standbys: tell whether the server takes no writes, and whether commits wait for a standby; count those that follow.
-- All of them, those that commits wait for, and those of which this role may not see more.
-- Differs: replicas are not looked at.
select null from dual where false;

-- database_file: read the path of the file that holds the tables.
select null;
