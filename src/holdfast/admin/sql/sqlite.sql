-- Holdfast's queries for SQLite: what people look up and do by hand.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.

-- fragment state_filter: conditions on the state of jobs that may be live or finished.
-- Differs: the lists below apply it to both tables at once.
   and state in (select value from json_each(:states))  -- when states
   and state = 'dead'  -- when only_dead
   and fingerprint = :group  -- when group
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before

-- fragment outcome_filter: the same conditions on finished jobs.
-- Differs: +outcome is no column, so that SQLite does not take holdfast_finished_age_idx, read all that ended so and
-- sort them. Without statistics it would, also where ids say how far to read.
   and +outcome in (select value from json_each(:states))  -- when states
   and outcome = 'dead'  -- when only_dead
   and fingerprint = :group  -- when group
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before

-- fragment job_filter: conditions on what live and finished jobs share.
-- Differs: instr for strpos, || for concat; lower() knows the letters of ASCII only.
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and key = :key  -- when key
   and leased_by = :worker  -- when worker
   and id in (select value from json_each(:ids))  -- when ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and substr(queue, 1, 6) = 'route:'  -- when outbox
   -- when event:
   and substr(queue, 1, 6) = 'route:' and json_valid(payload) and json_extract(payload, '$.type') = :event
   -- end
   -- when error:
   and json_valid(errors)
   and instr(
       lower(json_extract(errors, '$[#-1].type') || ': ' || json_extract(errors, '$[#-1].message')),
       lower(:error)) > 0
   -- end

-- jobs_list: read live and finished jobs as one list; a line marked `when` is there only if its parameter is given.
-- The conditions are pushed into both arms and the arms are merged by primary key, so that a page costs a page.
-- Differs: SQLite pushes conditions and order into both arms. They must give each column the same type, or it reads and
-- sorts both tables whole. An outcome is cast for the reason that is given at outcome_filter.
select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
       finished_at, fingerprint, replays, cancel_requested, lapses, waits_for
  from (select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, cast(null as text) as result, errors, available_at, created_at, leased_at, lease_expires_at,
               leased_by, cast(null as integer) as finished_at, cast(null as text) as fingerprint, replays,
               cancel_requested, lapses, waits_for
          from holdfast_jobs
         union all
        select id, cast(outcome as text), queue, kind, priority, attempts, max_attempts, fence, key, unique_key,
               payload, headers, progress, result, errors, available_at, created_at, leased_at, cast(null as integer),
               leased_by, finished_at, fingerprint, replays, cast(0 as integer), cast(0 as integer), cast(null as text)
          from holdfast_finished
         where true
           and false  -- when only_live
       ) j
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
-- Differs: there is no index of groups, so that of letters is gone through, whatever their groups. It is named, because
-- SQLite would take holdfast_finished_age_idx, and sort; so it is in the queries below.
select id
  from holdfast_finished
       indexed by holdfast_finished_letters_idx  -- when only_dead
 where true
   and outcome = 'dead'  -- when only_dead
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by
       id desc,  -- when newest
       id
 limit 1 offset :window;

-- letters_list: read dead letters by id; the columns and the lines marked `when` as in jobs_list.
-- Differs: the index is named; see finished_horizon.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, cast(null as integer), leased_by,
       finished_at, fingerprint, replays, cast(0 as integer), cast(0 as integer), cast(null as text)
  from holdfast_finished
       indexed by holdfast_finished_letters_idx  -- when only_dead
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
-- Differs: the index is named; see finished_horizon.
select id
  from holdfast_finished
       indexed by holdfast_finished_letters_idx  -- when only_dead
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id > :newer_than  -- when newer_than
 order by id desc
 limit :limit;

-- letters_count: count dead letters, no more than :most; the lines marked `when` as in jobs_list.
-- Differs: the index is named; see finished_horizon.
select count(*)
  from (select 1
          from holdfast_finished
               indexed by holdfast_finished_letters_idx  -- when only_dead
         where true
           -- insert outcome_filter
           -- insert job_filter
           and id < :older_than  -- when older_than
           and id > :newer_than  -- when newer_than
         limit :most) c;

-- jobs_read: read jobs by their ids, live and finished, each as one JSON text with the columns of jobs_list.
-- One text, because a connection of the application's may decode what else there is in a way of its own.
-- Differs: a blob is what no text_factory decodes; JSON holds none, so what may be one, written by hand, is cast.
select cast(json_array(
           cast(id as text), cast(state as text), cast(queue as text), cast(kind as text), cast(priority as integer),
           cast(attempts as integer), cast(max_attempts as integer), cast(fence as integer), cast(key as text),
           cast(unique_key as text), cast(payload as text), cast(headers as text), cast(progress as text),
           cast(result as text), cast(errors as text), cast(available_at as integer), cast(created_at as integer),
           cast(leased_at as integer), cast(lease_expires_at as integer), cast(leased_by as text),
           cast(finished_at as integer), cast(fingerprint as text), cast(replays as integer),
           cast(cancel_requested as integer), cast(lapses as integer), cast(waits_for as text)) as blob)
  from (select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, null as result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
               null as finished_at, null as fingerprint, replays, cancel_requested, lapses, waits_for
          from holdfast_jobs
         where id in (select value from json_each(:ids))
         union all
        select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, result, errors, available_at, created_at, leased_at, null, leased_by,
               finished_at, fingerprint, replays, 0, 0, null
          from holdfast_finished
         where id in (select value from json_each(:ids))) j;

-- jobs_count: count live and finished jobs; the lines marked `when` as in jobs_list.
-- With `most`, no more than that many are counted.
-- Differs: as jobs_list.
select count(*)
  from (select 1
          from (select id, state, queue, kind, key, payload, errors, created_at, leased_by,
                       cast(null as integer) as finished_at, cast(null as text) as fingerprint
                  from holdfast_jobs
                 union all
                select id, outcome, queue, kind, key, payload, errors, created_at, leased_by, finished_at, fingerprint
                  from holdfast_finished
                 where true
                   and false  -- when only_live
               ) j
         where true
           -- insert state_filter
           -- insert job_filter
           and id < :older_than  -- when older_than
           and id > :newer_than  -- when newer_than
         limit :most  -- when most
       ) c;

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
-- Differs: times are numbers of microseconds.
select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, cast(null as integer), leased_by,
       finished_at, fingerprint, replays, cast(0 as integer), cast(0 as integer), cast(null as text)
  from holdfast_finished
 where id in (
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at >= :finished_after  -- when finished_after
     order by finished_at desc
     limit :window)
   -- insert outcome_filter
   -- insert job_filter
 order by finished_at desc
 limit :limit;

-- live_any: tell whether there is a live job.
select 1 from holdfast_jobs limit 1;

-- queue_lags: count the due jobs of each queue and tell for how many microseconds the first has been due.
-- With `unpaused`, what is paused is left out.
-- Differs: times are numbers, so their difference is one too.
select queue, count(*), :now - min(available_at)
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
-- Differs: no ordered aggregates; the time written with leading zeros puts the latest id at the end.
select g.fingerprint, g.kind, g.count, g.queues, iif(json_valid(f.errors), json_extract(f.errors, '$[#-1].type'), null),
       iif(json_valid(f.errors), json_extract(f.errors, '$[#-1].message'), null),
       g.first_at, g.last_at, f.id
  from (select fingerprint, kind, count(*) as count, json_group_array(distinct queue) as queues,
               min(finished_at) as first_at, max(finished_at) as last_at,
               substr(max(printf('%020d', finished_at) || id), 21) as latest
          from (select fingerprint, kind, queue, finished_at, id
                  from holdfast_finished
                       indexed by holdfast_finished_letters_idx  -- when only_dead
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
select cast(id as blob), cast(state as blob) from holdfast_jobs where id in (select value from json_each(:ids))
union all
select cast(id as blob), cast(outcome as blob) from holdfast_finished
 where id in (select value from json_each(:ids));

-- live_look: read the live jobs that an action by hand may mean, by id; `when` as in jobs_list.
-- Differs: a blob is what no text_factory decodes, here and in what follows.
select cast(id as blob), cast(state as blob), cast(queue as blob), cast(kind as blob), cast(key as blob),
       cast(leased_by as blob), cast(waits_for as blob), cast(fence as integer), cast(followers as integer),
       cast(priority as integer), cast(available_at as integer)
  from holdfast_jobs
 where true
   and state in (select value from json_each(:states))  -- when states
   and id in (select value from json_each(:among))  -- when among
   -- insert job_filter
   and id > :newer_than  -- when newer_than
 order by id
 limit :limit;

-- live_lock: read those of these live jobs that are still meant; columns as in live_look.
-- Differs: one writer at a time, so nothing is locked and nothing is left out.
select cast(id as blob), cast(state as blob), cast(queue as blob), cast(kind as blob), cast(key as blob),
       cast(leased_by as blob), cast(waits_for as blob), cast(fence as integer), cast(followers as integer),
       cast(priority as integer), cast(available_at as integer)
  from holdfast_jobs
 where id in (select value from json_each(:among))
   and state in (select value from json_each(:states))  -- when states
   -- insert job_filter
 order by id;

-- run_now: make a pending or waiting job due.
-- Differs: least is called min, and there is nothing to notify.
update holdfast_jobs
   set available_at = case when state = 'waiting' then :now else min(available_at, :now) end,
       state = 'pending', waits_for = null
 where id = :id and state <> 'leased'
returning queue, kind;

-- cancel_pending: move pending and waiting jobs to the finished table as cancelled.
-- A claim that came first leaves nothing to move. The finished row of a job that lives a second time stays as it was.
-- Differs: no writing CTE, so copy and delete are two statements of one transaction.
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, errors, followers)
select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts,
       lease_ms, replays, priority, bucket, 'cancelled', queue, kind, key, unique_key, leased_by, payload, headers,
       progress, errors, followers
  from holdfast_jobs
 where id in (select value from json_each(:ids)) and state <> 'leased'
on conflict do nothing;
delete from holdfast_jobs where id in (select value from json_each(:ids)) and state <> 'leased'
returning cast(id as blob), cast(queue as blob), cast(kind as blob), cast(key as blob), cast(fence as integer),
    cast(followers as integer);

-- cancel_leased: ask the holders of jobs to stop.
-- Differs: no booleans, and nothing to notify.
update holdfast_jobs set cancel_requested = 1
 where id in (select value from json_each(:ids)) and state = 'leased'
returning cast(id as blob), cast(queue as blob), cast(kind as blob), cast(leased_by as blob), cast(fence as integer);

-- change_live: change what is said of jobs that nobody holds and whose rows are locked.
-- With `joins_anew`, they stand in no line any more, and no lease of theirs counts anywhere.
-- Differs: times are numbers, and there is nothing to notify.
update holdfast_jobs
   set priority = coalesce(:priority, priority), queue = coalesce(:to_queue, queue)
       , available_at = :run_at  -- when run_at
       , available_at = :now + :delay_ms * 1000  -- when delay_ms
       -- when joins_anew:
       , state = case when waits_for = 'line' then 'pending' else state end,
       waits_for = nullif(waits_for, 'line'), followers = nullif(followers & ~ :mask, 0)
       -- end
 where id in (select value from json_each(:ids)) and state <> 'leased';

-- finished_pick: read finished jobs for an action by hand, the oldest first; `when` as in jobs_list.
-- Differs: instr for strpos, || for concat; see jobs_list.
select id, outcome, queue, kind, unique_key, attempts, replays,
       iif(json_valid(errors), json_extract(errors, '$[#-1].type'), null),
       iif(json_valid(errors), json_extract(errors, '$[#-1].message'), null),
       key, cast(fence as integer), cast(followers as integer)
  from holdfast_finished
       indexed by holdfast_finished_letters_idx  -- when only_dead
 where true
   -- insert outcome_filter
   -- insert job_filter
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
 order by id
 limit :limit;

-- replay: move finished jobs back to their queue as new, except those whose unique key is live.
-- Differs: no writing CTE; the second statement deletes what the first one has copied.
insert into holdfast_jobs
    (id, fence, available_at, created_at, max_attempts, lease_ms, replays, priority, bucket, queue, kind, key,
     unique_key, payload, headers, progress, errors, followers)
select id, min(cast(fence as integer), 9223372036854775806) + 1, :now, created_at, max_attempts, lease_ms,
       min(cast(replays as integer), 2147483646) + 1, priority, bucket, queue, kind, key, unique_key, payload,
       headers, progress, errors, followers
  from holdfast_finished
 where id in (select value from json_each(:ids)) and outcome in ('dead', 'cancelled')
 order by kind, unique_key, id
on conflict do nothing;
delete from holdfast_finished
 where id in (select j.id from json_each(:ids) u join holdfast_jobs j on j.id = u.value)
returning id;

-- discard: delete finished jobs for good.
delete from holdfast_finished
 where id in (select value from json_each(:ids)) and outcome in ('dead', 'cancelled')
returning id;

-- audit_add: record what was done to jobs by hand.
insert into holdfast_audit (at, action, job_id, actor, detail)
select :now, json_extract(u.value, '$[0]'), json_extract(u.value, '$[1]'), json_extract(u.value, '$[2]'),
       json_extract(u.value, '$[3]')
  from json_each(:batch) u;

-- audit_list: read what was done by hand, the latest first.
select at, action, job_id, actor, detail
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
-- Differs: ctid is called rowid, and the list is a subquery.
delete from holdfast_audit
 where rowid in (
    select rowid from holdfast_audit
     where at < :now - :older_ms * 1000
     order by at
     limit :limit)
returning 1;

-- audit_older: count the lines that audit_prune would delete, no more than :most.
select count(*)
  from (select 1 from holdfast_audit where at < :now - :older_ms * 1000
         limit :most) c;

-- pause_add: pause a queue or a kind, unless it is paused already.
insert into holdfast_pauses (scope, name, since, paused_by, reason)
values (:scope, :name, :now, :actor, :reason)
on conflict do nothing
returning name;

-- pause_remove: let workers claim from a queue, or jobs of a kind, again.
delete from holdfast_pauses where scope = :scope and name = :name returning name;

-- pauses_due: count the due jobs of what is paused, and tell for how many microseconds the first has been due.
-- Differs: times are numbers, so their difference is one too.
select p.scope, p.name, count(*), :now - min(j.available_at)
  from holdfast_pauses p
  join holdfast_jobs j on case p.scope when 'queue' then j.queue else j.kind end = p.name
 where j.state = 'pending' and j.available_at <= :now
 group by p.scope, p.name
 order by p.scope desc, p.name;

-- long_transactions: find what holds snapshots older than a limit, and so keeps dead rows from being cleaned away.
-- Differs: SQLite does not tell who reads the file; a growing WAL file is the sign.
select null where :older_ms < 0 and :xids < 0;

-- table_health: read the sizes of our tables.
-- Differs: rows are counted; bytes and free pages are known for the file as a whole.
select '(file)', null, (select freelist_count from pragma_freelist_count()), null,
       (select page_count from pragma_page_count()) * (select page_size from pragma_page_size())
 union all select 'holdfast_each', count(*), null, null, null from holdfast_each  -- each table
 order by 1;

-- missing_indexes: name the indexes of the migrations that are gone.
-- Differs: SQLite's catalogue is a table, and an index there is never half built.
select w.name
  from (select null as name where false
        union all select 'holdfast_each'  -- each index
       ) w
 where not exists (select 1 from sqlite_master where type = 'index' and name = w.name)
 order by 1;

-- listeners: read the sessions in which workers listen for wake-ups.
-- Differs: nobody listens; workers watch PRAGMA data_version.
select null where false;

-- standbys: tell whether the server takes no writes, and whether commits wait for a standby; count those that follow.
-- All of them, those that commits wait for, and those of which this role may not see more.
-- Differs: a file has none.
select null where false;

-- database_file: read the path of the file that holds the tables.
-- Differs: PostgreSQL's tables are in no file of ours.
select file from pragma_database_list() where name = 'main';
