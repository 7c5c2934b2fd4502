-- Holdfast's queries for MySQL and MariaDB. The other dialects hold the same names in the same order: review them with diff.
-- Times: coalesce(cast(:now as datetime(6)), utc_timestamp(6)) is the server's clock unless a test sets :now.
-- Numbers at their ends stay there (`least`, `greatest`): otherwise a row written by hand would stop a whole batch.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; :held is its ids and fences alone; ids are a
-- JSON text too. JSON_TABLE makes a table of it, and STRAIGHT_JOIN from there reads every row by its primary key; without
-- FORCE INDEX a small table is read as a whole, and a locking read then waits for rows that are not its own.
-- Differs throughout: nothing returns what it wrote. A query locks and reads its rows first, then writes them; what it
-- gives are the rows it read, and :found is their first column. A query that finds nothing ends there.
-- Differs throughout: MySQL locks a JSON_TABLE too unless told `of j`, which MariaDB does not know: a /*!80001 comment */.
-- Differs throughout: `key` is a reserved word, hence the backquotes.

-- schema_create: make the configured schema, if one is configured.
-- Differs: a schema is a database here; the URL names it.
select 1;

-- schema_lock: let one migrator in at a time; freed by schema_unlock, or when its connection closes.
-- Differs: DDL commits, so a lock of the transaction would not last; 0 means that another migrator held it all the time.
-- MySQL takes names of 64 characters, as many as a database may have in its own.
select get_lock(concat('holdfast ', left(sha2(concat(database(), '.holdfast_meta'), 256), 40)), 30);

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Differs: the server's own limit stands.
select 1;

-- schema_unlock: let the next migrator in.
select release_lock(concat('holdfast ', left(sha2(concat(database(), '.holdfast_meta'), 256), 40)));

-- meta_create: make the table that holds the schema version.
create table if not exists holdfast_meta (
    `key` varchar(40) character set ascii collate ascii_bin not null primary key,
    value varchar(200) character set ascii collate ascii_bin not null
) engine = InnoDB;

-- meta_present: tell whether Holdfast's tables were ever made here.
select exists (select 1 from information_schema.tables where table_schema = database() and table_name = 'holdfast_meta');

-- version_read: read the schema version.
select value from holdfast_meta where `key` = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (`key`, value) values ('schema_version', :version)
on duplicate key update value = :version;

-- clock: read the database's time.
select coalesce(cast(:now as datetime(6)), utc_timestamp(6));

-- enqueue: add one job.
-- An id that is there adds nothing, so a lost reply to COMMIT may be answered by running it again; `take_back` sees to
-- jobs that were finished meanwhile. What is NULL, or 0 unless told, is left out: it takes time to bind, to send
-- and to read.
-- Differs: nothing to notify; workers poll.
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , `key`  -- when key
    , bucket  -- when bucket
    , unique_key  -- when unique_key
    )
values (:id, :queue, :kind, :payload,
    coalesce(cast(:run_at as datetime(6)),  -- when run_at
    coalesce(cast(:now as datetime(6)), utc_timestamp(6))
        + interval :delay_ms * 1000 microsecond  -- when delay_ms
    )  -- when run_at
    , coalesce(cast(:now as datetime(6)), utc_timestamp(6)), :max_attempts
    , :priority  -- when priority
    , :headers  -- when headers
    , :lease_ms  -- when lease_ms
    , :key  -- when key
    , :bucket  -- when bucket
    , :unique_key  -- when unique_key
    )
on duplicate key update id = holdfast_jobs.id;

-- enqueue_alike: add a batch of jobs that differ in id and payload only.
-- Reading 13 columns out of the JSON text took 30 µs a job, two take 18 (MariaDB 10.11).
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , `key`  -- when key
    , bucket  -- when bucket
    , unique_key  -- when unique_key
    )
select u.id, :queue, :kind, u.payload,
       coalesce(cast(:run_at as datetime(6)),  -- when run_at
       coalesce(cast(:now as datetime(6)), utc_timestamp(6))
           + interval :delay_ms * 1000 microsecond  -- when delay_ms
       )  -- when run_at
       , coalesce(cast(:now as datetime(6)), utc_timestamp(6)), :max_attempts
       , :priority  -- when priority
       , :headers  -- when headers
       , :lease_ms  -- when lease_ms
       , :key  -- when key
       , :bucket  -- when bucket
       , :unique_key  -- when unique_key
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', payload longtext character set utf8mb4 path '$[1]')) u
on duplicate key update id = holdfast_jobs.id;

-- enqueue_many: add a batch of jobs of any sort.
insert into holdfast_jobs
    (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, `key`, bucket, unique_key)
select u.id, u.queue, u.kind, u.payload, u.headers, u.priority,
       coalesce(cast(u.run_at as datetime(6)), coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval u.delay_ms * 1000 microsecond),
       coalesce(cast(:now as datetime(6)), utc_timestamp(6)), u.max_attempts, u.lease_ms, u.`key`, u.bucket, u.unique_key
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', queue longtext character set utf8mb4 path '$[1]',
        kind longtext character set utf8mb4 path '$[2]', payload longtext character set utf8mb4 path '$[3]',
        headers longtext character set utf8mb4 path '$[4]', priority integer path '$[5]', run_at varchar(26) path '$[6]',
        delay_ms bigint path '$[7]', max_attempts integer path '$[8]', lease_ms integer path '$[9]',
        `key` longtext character set utf8mb4 path '$[10]', bucket integer path '$[11]',
        unique_key longtext character set utf8mb4 path '$[12]')) u
on duplicate key update id = holdfast_jobs.id;

-- take_back: delete live jobs that are finished already: a repeated enqueue added them a second time.
-- A statement after the insert, in its transaction: whatever kept the insert from finding the job has committed by now.
delete j
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- take_back_dropped: delete live jobs that were dropped already, since a moment before their first enqueue.
-- A job that was dropped had been claimed, so its fence was above 0; with 0 it is what the repeat has added, or its like.
-- The derived table gets an index from the server, so that a large batch is not compared with every id.
select u.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join (
    select distinct t.id
      from holdfast_dropped d force index (holdfast_dropped_at_idx)
     straight_join json_table(d.ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) t
     where d.at >= :since) x on x.id = u.id
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = 0;
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- unique_find: read the live jobs that hold these unique keys, with the place of each in the batch.
-- No text comes back but the id: a caller's connection may decode texts in a way of its own.
-- Differs: a locking read, because a caller's REPEATABLE READ would not see what another transaction has committed.
select u.n, j.id
  from json_table(:batch, '$[*]' columns (
        n for ordinality, kind varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        unique_key varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_jobs j force index (holdfast_jobs_unique_idx) on j.kind = u.kind and j.unique_key = u.unique_key
   /*M! lock in share mode */ /*!80001 for share of j */;

-- keys_take: take idempotency keys that are free or past their window; the flow reads who holds the others.
-- On a key that another transaction is taking, this waits for it: nobody can miss a key that then commits.
-- Differs: assignments see those before them, so the end of the window is written last.
insert into holdfast_keys (scope, `key`, job_id, expires_at)
select u.scope, u.`key`, u.job_id, coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval u.window_ms * 1000 microsecond
  from json_table(:batch, '$[*]' columns (
        scope longtext character set utf8mb4 path '$[0]', `key` longtext character set utf8mb4 path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]', window_ms bigint path '$[3]')) u
on duplicate key update
    job_id = if(holdfast_keys.expires_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6)), u.job_id, holdfast_keys.job_id),
    expires_at = if(holdfast_keys.expires_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6)),
        coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval u.window_ms * 1000 microsecond, holdfast_keys.expires_at);

-- keys_find: read which job holds each key, with the place of the key in the batch.
-- Differs: a locking read, as in unique_find.
select u.n, k.job_id
  from json_table(:batch, '$[*]' columns (
        n for ordinality, scope varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key`
   /*M! lock in share mode */ /*!80001 for share of k */;

-- keys_point: let keys name the unique job that was found instead of the one that was not added.
update json_table(:batch, '$[*]' columns (
        scope varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]',
        holder char(36) character set ascii collate ascii_bin path '$[3]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key` and k.job_id = u.job_id
   set k.job_id = u.holder;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- Differs: no LATERAL in MariaDB, and its recursive queries read whole levels: the hops from priority to priority are
-- statements of their own, one for each level that is needed.
-- The index gives the order of what is taken: with a sort InnoDB would lock every candidate, and the next worker would get
-- nothing. Without the hops MariaDB locks every job for later that it walks over (5,000 of them: 80 ms a claim).
-- The rows come in no order: sorting them with their payloads doubled the time of a claim.
-- A hop for each of 1,500 queues takes a second and more. Of many queues only those are looked at that have due jobs of
-- these kinds, as long as there are few jobs of these kinds at all, and their first and last levels are read at once.
-- Written with all columns of its index, that order is read from its end, one row each; with fewer MySQL sorts the queue.
select k.queue, count(*), sum(k.state = 'pending' and k.available_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6)))  -- narrow
  from (select queue, state, available_at from holdfast_jobs force index (holdfast_jobs_unique_idx)
         where true
           and kind in (:kinds)  -- when kinds
         limit 1000) k
 group by k.queue;
select e.queue, e.first, e.first_at, e.first_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6)), e.last  -- survey
  from (select q.queue,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first,
               (select n.available_at from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first_at,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state desc, n.queue desc, n.urgency desc, n.available_at desc, n.id desc limit 1) as last
          from json_table(:many, '$[*]' columns (queue varchar(100) character set utf8mb4 collate holdfast_text path '$')) q) e
 where e.first is not null;
select urgency, available_at, available_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6))  -- hop
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency > :urgency
   and urgency < :until  -- when lane_queues
 order by urgency, available_at
 limit 1;
select id
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency = :urgency
   and available_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6))
   and available_at between :floor and :ceiling  -- when lane_queues
   and kind in (:kinds)  -- when kinds
   and lapses = 0  -- when unsuspected
 order by available_at, id
 limit :limit
   for update skip locked;
select j.id, j.queue, j.kind, j.payload, j.headers, j.`key`, j.priority, least(j.attempts, 2147483646) + 1, j.max_attempts,
       least(j.fence, 9223372036854775806) + 1,
       coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms),
       j.available_at, j.created_at, j.cancel_requested, j.lapses
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.state = 'leased', j.fence = least(j.fence, 9223372036854775806) + 1, j.attempts = least(j.attempts, 2147483646) + 1,
       j.began = false, j.leased_by = :worker,
       j.leased_at = coalesce(cast(:now as datetime(6)), utc_timestamp(6)),
       j.lease_expires_at = coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval 1000 * coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms) microsecond;

-- renew: put the end of held leases off, note whose handler has begun, and tell who was asked to stop.
select j.id, j.cancel_requested
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]', lease_ms integer path '$[2]',
        began integer path '$[3]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   set j.lease_expires_at = coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval u.lease_ms * 1000 microsecond,
       j.began = j.began or u.began;

-- begin: record that the handler of a leased job is about to be called.
select id from holdfast_jobs where id = :id and fence = :fence for update;
update holdfast_jobs set began = true where id = :id and fence = :fence;

-- put_back: return leased jobs to their queue: retry (delay, error), snooze (delay, attempt back), release (attempt back).
-- The fence rises here too, so that whoever held the lease can no longer write.
-- Differs: errors are a JSON array as text; what is added goes before its last bracket. Whatever else is there becomes its
-- first item.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]', delay_ms bigint path '$[2]',
        attempts_back integer path '$[3]', error longtext character set utf8mb4 path '$[4]', lapses integer path '$[5]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   set j.state = 'pending', j.fence = least(j.fence, 9223372036854775806) + 1, j.attempts = greatest(j.attempts, 1) - u.attempts_back,
       j.lapses = coalesce(u.lapses, j.lapses),
       j.available_at = coalesce(coalesce(cast(:now as datetime(6)), utc_timestamp(6)) + interval u.delay_ms * 1000 microsecond, j.available_at),
       j.leased_by = null, j.leased_at = null, j.lease_expires_at = null,
       j.errors = case when u.error is null then j.errors
                       when j.errors is null then concat('[', u.error, ']')
                       when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
                       when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
                       when json_length(j.errors) = 0 then concat('[', u.error, ']')
                       else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end;

-- finish: move leased jobs to the finished table with their outcome.
-- Differs: no writing CTE, so copy and delete are statements of one transaction.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     outcome, queue, kind, `key`, unique_key, leased_by, fingerprint, payload, headers, progress, result, errors)
select j.id, j.fence, j.available_at, j.created_at, j.leased_at, coalesce(cast(:now as datetime(6)), utc_timestamp(6)), j.attempts,
       j.max_attempts, j.lease_ms, j.replays, j.priority, j.bucket, u.outcome, j.queue, j.kind, j.`key`, j.unique_key, j.leased_by,
       u.fingerprint, j.payload, j.headers, j.progress, u.result,
       case when u.error is null then j.errors
            when j.errors is null then concat('[', u.error, ']')
            when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
            when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
            when json_length(j.errors) = 0 then concat('[', u.error, ']')
            else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]', outcome varchar(10) path '$[2]',
        result longtext character set utf8mb4 path '$[3]', error longtext character set utf8mb4 path '$[4]',
        fingerprint varchar(64) character set utf8mb4 path '$[5]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence;
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- drop: delete leased jobs that leave no finished row (retention 0), and note their ids for repeated enqueues.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
insert into holdfast_dropped (at, ids) values (coalesce(cast(:now as datetime(6)), utc_timestamp(6)), :found);
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- settled: tell which of these jobs are finished, with the fence they ended with, for a settle whose answer was lost.
select f.id, f.fence
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- live: tell which of these jobs are still in the live table, with the fence they have now.
select j.id, j.fence
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- progress: store how far a leased job is.
select id from holdfast_jobs where id = :id and fence = :fence for update;
update holdfast_jobs set progress = :progress where id = :id and fence = :fence;

-- reap_pick: read leases that ran out, oldest first, and lock them; the flow decides what becomes of each.
select id, queue, kind, fence, attempts, max_attempts, leased_by, leased_at, lease_expires_at, cancel_requested, began, lapses
  from holdfast_jobs force index (holdfast_jobs_lease_idx)
 where state = 'leased' and lease_expires_at < coalesce(cast(:now as datetime(6)), utc_timestamp(6))
   and lease_expires_at >= coalesce(cast(:now as datetime(6)), utc_timestamp(6)) - interval :look_back_ms * 1000 microsecond  -- when look_back_ms
   and kind in (:kinds)  -- when kinds
   and id not in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)
 order by lease_expires_at
 limit :limit
   for update skip locked  -- when lock
;

-- reap_mark: raise the fence of leases that were picked, so that a late holder's write cannot be taken for the reaper's.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.fence = least(j.fence, 9223372036854775806) + 1;

-- strays: read the leases that the table says a worker holds, but for those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker
   and id not in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u);

-- stuck: read rows, written by hand, that no claim and no reaper can ever take, and why.
select id, 'a lease without an end: lease_expires_at' from holdfast_jobs force index (holdfast_jobs_lease_idx)
 where state = 'leased' and lease_expires_at is null
 limit :limit;

-- beat: record that a worker is alive. A beat never un-drains.
insert into holdfast_workers (id, status, started_at, seen_at, info)
values (:id, 'alive', coalesce(cast(:now as datetime(6)), utc_timestamp(6)), coalesce(cast(:now as datetime(6)), utc_timestamp(6)), :info)
on duplicate key update seen_at = coalesce(cast(:now as datetime(6)), utc_timestamp(6)), info = :info,
    status = case when status = 'dead' then 'alive' else status end;
select status from holdfast_workers where id = :id;

-- worker_mark: set a worker's status.
select id from holdfast_workers where id = :id for update;
update holdfast_workers set status = :status, seen_at = coalesce(cast(:now as datetime(6)), utc_timestamp(6))
 where id = :id;

-- workers_bury: mark workers dead that have been silent for too long.
-- A draining one stays draining: dead, its next beat would revive it as alive, and a beat never un-drains.
select id from holdfast_workers
 where status = 'alive' and seen_at < coalesce(cast(:now as datetime(6)), utc_timestamp(6)) - interval :silent_ms * 1000 microsecond
   for update skip locked;
update json_table(:found, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id
   set w.status = 'dead';

-- workers_forget: delete silent workers that nobody asks about any more.
select id from holdfast_workers
 where status <> 'alive' and seen_at < coalesce(cast(:now as datetime(6)), utc_timestamp(6)) - interval :older_ms * 1000 microsecond
   for update skip locked;
delete w
  from json_table(:found, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id;

-- workers_list: read the registry with the age of each beat in milliseconds.
select id, status, started_at, seen_at,
       timestampdiff(microsecond, seen_at, coalesce(cast(:now as datetime(6)), utc_timestamp(6))) div 1000, info
  from holdfast_workers
 order by started_at, id;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
-- Differs: the optimizer does the hopping (a loose index scan).
select outcome, queue from holdfast_finished group by outcome, queue;

-- prune: delete a chunk of finished rows older than their retention.
select id from holdfast_finished force index (holdfast_finished_age_idx)
 where outcome = :outcome and queue = :queue
   and finished_at < coalesce(cast(:now as datetime(6)), utc_timestamp(6)) - interval :older_ms * 1000 microsecond
 order by finished_at
 limit :limit
   for update skip locked;
delete f
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- dropped_add: note the ids of jobs whose finished rows are gone.
insert into holdfast_dropped (at, ids) values (coalesce(cast(:now as datetime(6)), utc_timestamp(6)), :ids);

-- dropped_prune: delete a chunk of notes that no repeat can ask for any more.
select id from holdfast_dropped force index (holdfast_dropped_at_idx)
 where at < coalesce(cast(:now as datetime(6)), utc_timestamp(6)) - interval :older_ms * 1000 microsecond
 order by at
 limit :limit
   for update skip locked;
delete d
  from json_table(:found, '$[*]' columns (id bigint path '$')) u
 straight_join holdfast_dropped d force index (primary) on d.id = u.id;

-- keys_prune: delete a chunk of idempotency keys past their window.
-- Differs: :found is one column, so the two of the primary key are put into one JSON text.
select json_array(scope, `key`) from holdfast_keys force index (holdfast_keys_expiry_idx)
 where expires_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6))
 order by expires_at
 limit :limit
   for update skip locked;
delete k
  from json_table(:found, '$[*]' columns (pair longtext character set utf8mb4 path '$')) p
 straight_join json_table(p.pair, '$' columns (
        scope varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key`;

-- jobs_list: read live and finished jobs as one list; a line marked `when` is there only if its parameter is given.
-- Differs: order and limit are not pushed into a union, so each arm has them; what only one table knows is NULL in the other.
select id, state, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
       finished_at, fingerprint, replays, cancel_requested, lapses
  from ((select id, state, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
                progress, null as result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
                null as finished_at, null as fingerprint, replays, cancel_requested, lapses
           from holdfast_jobs
          where true
            and state in (:states)  -- when states
            and state = 'dead'  -- when only_dead
            and queue = :queue  -- when queue
            and kind = :kind  -- when kind
            and `key` = :key  -- when key
            and null = :group  -- when group
            and leased_by = :worker  -- when worker
            and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
            and created_at >= :created_after  -- when created_after
            and created_at < :created_before  -- when created_before
            and null >= :finished_after  -- when finished_after
            and null < :finished_before  -- when finished_before
            and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
            and id < :older_than  -- when older_than
            and id > :newer_than  -- when newer_than
            and state = 'leased' and lease_expires_at < coalesce(cast(:now as datetime(6)), utc_timestamp(6))  -- when expired
          order by
                lease_expires_at,  -- when expired
                id desc,  -- when newest
                id
          limit :limit)
         union all
        (select id, outcome, queue, kind, priority, attempts, max_attempts, fence, `key`, unique_key, payload, headers,
                progress, result, errors, available_at, created_at, leased_at, null, leased_by,
                finished_at, fingerprint, replays, false, 0
           from holdfast_finished
          where true
            and outcome in (:states)  -- when states
            and outcome = 'dead'  -- when only_dead
            and queue = :queue  -- when queue
            and kind = :kind  -- when kind
            and `key` = :key  -- when key
            and fingerprint = :group  -- when group
            and leased_by = :worker  -- when worker
            and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
            and created_at >= :created_after  -- when created_after
            and created_at < :created_before  -- when created_before
            and finished_at >= :finished_after  -- when finished_after
            and finished_at < :finished_before  -- when finished_before
            and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
            and id < :older_than  -- when older_than
            and id > :newer_than  -- when newer_than
            and false  -- when expired
          order by
                id desc,  -- when newest
                id
          limit :limit)) j
 order by
       lease_expires_at,  -- when expired
       id desc,  -- when newest
       id
 limit :limit;

-- jobs_count: count live and finished jobs; the lines marked `when` as in jobs_list.
select
    (select count(*)
       from holdfast_jobs
      where true
        and state in (:states)  -- when states
        and state = 'dead'  -- when only_dead
        and queue = :queue  -- when queue
        and kind = :kind  -- when kind
        and `key` = :key  -- when key
        and null = :group  -- when group
        and leased_by = :worker  -- when worker
        and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
        and created_at >= :created_after  -- when created_after
        and created_at < :created_before  -- when created_before
        and null >= :finished_after  -- when finished_after
        and null < :finished_before  -- when finished_before
        and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
    ) +
    (select count(*)
       from holdfast_finished
      where true
        and outcome in (:states)  -- when states
        and outcome = 'dead'  -- when only_dead
        and queue = :queue  -- when queue
        and kind = :kind  -- when kind
        and `key` = :key  -- when key
        and fingerprint = :group  -- when group
        and leased_by = :worker  -- when worker
        and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
        and created_at >= :created_after  -- when created_after
        and created_at < :created_before  -- when created_before
        and finished_at >= :finished_after  -- when finished_after
        and finished_at < :finished_before  -- when finished_before
        and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
    );

-- queue_counts: count jobs by queue, kind and state.
select queue, kind, sum(pending), sum(due), sum(pending - due), sum(leased), sum(done), sum(dead), sum(cancelled)
  from (select queue, kind, sum(state = 'pending') as pending,
               sum(state = 'pending' and available_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6))) as due,
               sum(state = 'leased') as leased, 0 as done, 0 as dead, 0 as cancelled
          from holdfast_jobs
         group by queue, kind
         union all
        select queue, kind, 0, 0, 0, sum(outcome = 'done'), sum(outcome = 'dead'),
               sum(outcome = 'cancelled')
          from holdfast_finished
         group by queue, kind) c
 group by queue, kind
 order by queue, kind;

-- queue_lags: count the due jobs of each queue and tell for how many microseconds the first has been due.
select queue, count(*), timestampdiff(microsecond, min(available_at), coalesce(cast(:now as datetime(6)), utc_timestamp(6)))
  from holdfast_jobs
 where state = 'pending' and available_at <= coalesce(cast(:now as datetime(6)), utc_timestamp(6))
 group by queue
 order by 3 desc, 1;

-- dead_groups: group dead letters by kind and fingerprint, with the error of the latest; `when` as in jobs_list.
-- Differs: no ordered aggregates; the time written in front puts the latest id at the end.
select g.fingerprint, g.kind, g.letters, g.queues,
       if(json_valid(f.errors), json_unquote(json_extract(f.errors, concat('$[', json_length(f.errors) - 1, '].type'))), null),
       if(json_valid(f.errors), json_unquote(json_extract(f.errors, concat('$[', json_length(f.errors) - 1, '].message'))), null),
       g.first_at, g.last_at, f.id
  from (select fingerprint, kind, count(*) as letters, concat('[', group_concat(distinct json_quote(queue)), ']') as queues,
               min(finished_at) as first_at, max(finished_at) as last_at,
               convert(substr(max(concat(cast(finished_at as char(26)), id)), 27) using ascii) collate ascii_bin as latest
          from holdfast_finished
         where true
           and outcome in (:states)  -- when states
           and outcome = 'dead'  -- when only_dead
           and queue = :queue  -- when queue
           and kind = :kind  -- when kind
           and `key` = :key  -- when key
           and fingerprint = :group  -- when group
           and leased_by = :worker  -- when worker
           and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
           and created_at >= :created_after  -- when created_after
           and created_at < :created_before  -- when created_before
           and finished_at >= :finished_after  -- when finished_after
           and finished_at < :finished_before  -- when finished_before
           and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
         group by fingerprint, kind
         order by count(*) desc, max(finished_at) desc
         limit :limit) g
  join holdfast_finished f on f.id = g.latest
 order by g.letters desc, g.last_at desc;

-- job_state: tell where a job is in its life.
select state from holdfast_jobs where id = :id
union all
select outcome from holdfast_finished where id = :id;

-- run_now: make a pending job due.
select queue, kind from holdfast_jobs where id = :id and state = 'pending' for update;
update holdfast_jobs set available_at = least(available_at, coalesce(cast(:now as datetime(6)), utc_timestamp(6)))
 where id = :id and state = 'pending';

-- cancel_pending: move a pending job to the finished table as cancelled; a claim that came first leaves nothing to move.
-- Differs: no writing CTE, so copy and delete are statements of one transaction.
select queue, kind from holdfast_jobs where id = :id and state = 'pending' for update;
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     outcome, queue, kind, `key`, unique_key, leased_by, payload, headers, progress, errors)
select id, fence, available_at, created_at, leased_at, coalesce(cast(:now as datetime(6)), utc_timestamp(6)), attempts, max_attempts,
       lease_ms, replays, priority, bucket, 'cancelled', queue, kind, `key`, unique_key, leased_by, payload, headers, progress, errors
  from holdfast_jobs
 where id = :id and state = 'pending';
delete from holdfast_jobs where id = :id and state = 'pending';

-- cancel_leased: ask the holder of a job to stop.
select queue, kind, leased_by, fence from holdfast_jobs where id = :id and state = 'leased' for update;
update holdfast_jobs set cancel_requested = true
 where id = :id and state = 'leased';

-- finished_pick: lock finished jobs for an action by hand, the oldest first; `when` as in jobs_list.
-- No SKIP LOCKED: a second replay waits for the first and goes on behind it, and both lock in the order of ids.
select id, outcome, queue, kind, unique_key, attempts, replays,
       if(json_valid(errors), json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), null),
       if(json_valid(errors), json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))), null)
  from holdfast_finished
 where true
   and outcome in (:states)  -- when states
   and outcome = 'dead'  -- when only_dead
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and `key` = :key  -- when key
   and fingerprint = :group  -- when group
   and leased_by = :worker  -- when worker
   and id in (select u.id from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)  -- when ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before
   and json_valid(errors) and instr(lower(concat(json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].type'))), ': ', json_unquote(json_extract(errors, concat('$[', json_length(errors) - 1, '].message'))))), lower(:error)) > 0  -- when error
 order by id
 limit :limit
   for update;

-- replay: move finished jobs back to their queue as new, but for those whose unique key is live.
-- Inserted in the order of unique keys, as enqueue does, so that two batches never wait for each other in a circle.
-- Differs: no writing CTE; what is in the live table then, the first statement has put there.
insert into holdfast_jobs
    (id, fence, available_at, created_at, max_attempts, lease_ms, replays, priority, bucket, queue, kind, `key`, unique_key,
     payload, headers, progress, errors)
select f.id, least(f.fence, 9223372036854775806) + 1, coalesce(cast(:now as datetime(6)), utc_timestamp(6)), f.created_at, f.max_attempts, f.lease_ms,
       least(f.replays, 2147483646) + 1, f.priority, f.bucket, f.queue, f.kind, f.`key`, f.unique_key, f.payload, f.headers, f.progress, f.errors
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
select coalesce(cast(:now as datetime(6)), utc_timestamp(6)), u.action, u.job_id, u.actor, u.detail
  from json_table(:batch, '$[*]' columns (
        action varchar(40) path '$[0]', job_id char(36) character set ascii collate ascii_bin path '$[1]',
        actor longtext character set utf8mb4 path '$[2]', detail longtext character set utf8mb4 path '$[3]')) u;

-- audit_list: read what was done by hand, the latest first.
select at, action, job_id, actor, detail
  from holdfast_audit
 where true
   and job_id = :job_id  -- when job_id
 order by at desc, job_id desc
 limit :limit;

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
  from (select 'holdfast_jobs' as name union all select 'holdfast_finished' union all select 'holdfast_dropped'
        union all select 'holdfast_keys' union all select 'holdfast_workers' union all select 'holdfast_audit') t
  left join information_schema.tables s on s.table_schema = database() and s.table_name = t.name
 order by 1;

-- missing_indexes: name the indexes of the migrations that are gone.
select w.name
  from (select 'holdfast_jobs_claim_idx' as name union all select 'holdfast_jobs_lease_idx' union all select 'holdfast_jobs_unique_idx'
        union all select 'holdfast_jobs_key_idx' union all select 'holdfast_finished_age_idx'
        union all select 'holdfast_finished_dead_idx' union all select 'holdfast_dropped_at_idx'
        union all select 'holdfast_keys_expiry_idx' union all select 'holdfast_audit_job_idx') w
 where not exists (select 1 from information_schema.statistics s where s.table_schema = database() and s.index_name = w.name)
 order by 1;

-- listeners: read the sessions in which workers listen for wake-ups.
-- Differs: nobody listens; workers poll.
select null from dual where false;

-- database_file: read the path of the file that holds the tables.
select null;
