-- Holdfast's queries for MySQL and MariaDB: the life of jobs.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (utc_timestamp(6)), except where a test tells the time.
-- Numbers at their ends stay there (`least`, `greatest`): otherwise a row written by hand would stop a whole batch.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; :held is its ids and fences alone; ids are
-- a JSON text too. JSON_TABLE makes a table of it, and STRAIGHT_JOIN from there reads every row by its primary key;
-- without FORCE INDEX a small table is read as a whole, and a locking read then waits for rows that are not its own.
-- Differs throughout: nothing returns what it wrote. A query locks and reads its rows first, then writes them; what it
-- gives are the rows it read, and :found is their first column. A query that finds nothing ends there.
-- Differs throughout: MySQL locks a JSON_TABLE too unless it is told `of j`, which MariaDB does not know: a /*!80001
-- comment */.
-- Differs throughout: `key` is a reserved word, hence the backquotes.

-- enqueue: add one job.
-- An id that is there adds nothing, so a lost reply to COMMIT may be answered by running it again; `take_back` sees to
-- jobs that were finished meanwhile. What is NULL, or 0 by default, is left out: it takes time to bind, to send
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
    , followers  -- when followers
    )
values (:id, :queue, :kind, :payload,
    coalesce(cast(:run_at as datetime(6)),  -- when run_at
    :now
        + interval :delay_ms * 1000 microsecond  -- when delay_ms
    )  -- when run_at
    , :now, :max_attempts
    , :priority  -- when priority
    , :headers  -- when headers
    , :lease_ms  -- when lease_ms
    , :key  -- when key
    , :bucket  -- when bucket
    , :unique_key  -- when unique_key
    , :followers  -- when followers
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
    , followers  -- when followers
    )
select u.id, :queue, :kind, u.payload,
       coalesce(cast(:run_at as datetime(6)),  -- when run_at
       :now
           + interval :delay_ms * 1000 microsecond  -- when delay_ms
       )  -- when run_at
       , :now, :max_attempts
       , :priority  -- when priority
       , :headers  -- when headers
       , :lease_ms  -- when lease_ms
       , :key  -- when key
       , :bucket  -- when bucket
       , :unique_key  -- when unique_key
       , :followers  -- when followers
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        payload longtext character set utf8mb4 path '$[1]')) u
on duplicate key update id = holdfast_jobs.id;

-- enqueue_keyed: add a batch of jobs that differ in id, payload and key only.
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts, `key`, bucket
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , followers  -- when followers
    )
select u.id, :queue, :kind, u.payload,
       coalesce(cast(:run_at as datetime(6)),  -- when run_at
       :now
           + interval :delay_ms * 1000 microsecond  -- when delay_ms
       )  -- when run_at
       , :now, :max_attempts, u.`key`, u.bucket
       , :priority  -- when priority
       , :headers  -- when headers
       , :lease_ms  -- when lease_ms
       , :followers  -- when followers
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        payload longtext character set utf8mb4 path '$[1]', `key` longtext character set utf8mb4 path '$[2]',
        bucket integer path '$[3]')) u
on duplicate key update id = holdfast_jobs.id;

-- enqueue_many: add a batch of jobs of any sort.
insert into holdfast_jobs
    (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, `key`, bucket,
     unique_key
    , followers  -- when followers
    )
select u.id, u.queue, u.kind, u.payload, u.headers, u.priority,
       coalesce(cast(u.run_at as datetime(6)), :now + interval u.delay_ms * 1000 microsecond),
       :now, u.max_attempts, u.lease_ms, u.`key`, u.bucket, u.unique_key
       , :followers  -- when followers
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', queue longtext character set utf8mb4 path '$[1]',
        kind longtext character set utf8mb4 path '$[2]', payload longtext character set utf8mb4 path '$[3]',
        headers longtext character set utf8mb4 path '$[4]', priority integer path '$[5]',
        run_at varchar(26) path '$[6]', delay_ms bigint path '$[7]', max_attempts integer path '$[8]',
        lease_ms integer path '$[9]', `key` longtext character set utf8mb4 path '$[10]', bucket integer path '$[11]',
        unique_key longtext character set utf8mb4 path '$[12]')) u
on duplicate key update id = holdfast_jobs.id;

-- take_back: delete live jobs that are finished already: a repeated enqueue added them a second time.
-- What it has added has no followers yet. One that has is from elsewhere, and leaves by the door when it ends.
-- A statement after the insert, in its transaction: whatever kept the insert from finding the job has committed by now.
delete j
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.followers is null
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- take_back_dropped: delete live jobs that were dropped already, since a moment before their first enqueue.
-- A job that was dropped had been claimed, so its fence was above 0; with 0 it is what the repeat has added, or its
-- like.
-- The derived table gets an index from the server, so that a large batch is not compared with every id.
select u.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join (
    select distinct t.id
      from holdfast_dropped d force index (holdfast_dropped_at_idx)
     straight_join json_table(d.ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) t
     where d.at >= :since) x on x.id = u.id
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = 0 and j.followers is null;
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = 0 and j.followers is null;

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
select u.scope, u.`key`, u.job_id, :now + interval :window_ms * 1000 microsecond
  from json_table(:batch, '$[*]' columns (
        scope longtext character set utf8mb4 path '$[0]', `key` longtext character set utf8mb4 path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]')) u
on duplicate key update
    job_id = if(holdfast_keys.expires_at <= :now, u.job_id, holdfast_keys.job_id),
    expires_at = if(holdfast_keys.expires_at <= :now,
        :now + interval :window_ms * 1000 microsecond, holdfast_keys.expires_at);

-- keys_find: read which job holds each key, with the place of the key in the batch.
-- Differs: a locking read, as in unique_find.
select u.n, k.job_id
  from json_table(:batch, '$[*]' columns (
        n for ordinality, scope varchar(120) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key`
   /*M! lock in share mode */ /*!80001 for share of k */;

-- keys_point: let keys name the unique job that was found instead of the one that was not added.
update json_table(:batch, '$[*]' columns (
        scope varchar(120) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]',
        holder char(36) character set ascii collate ascii_bin path '$[3]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key` and k.job_id = u.job_id
   set k.job_id = u.holder;

-- keys_forget: free a key that this transaction took for an effect that failed.
delete from holdfast_keys
 where scope = :scope and `key` = :key and job_id = :job_id;

-- debounce_take: lock the rows of debounce keys, made where they are not there, and read what each names.
-- On a key that another call has, this waits for that call's transaction: the last of them counts.
-- A repeated call leaves `latest` as it is, to find out whether it was its own; a new one counts at once.
-- The time moves once a minute at most: it is in an index, and otherwise an update of the row stays on its page.
-- Differs: what it names is read by debounce_find.
insert into holdfast_debounces (kind, `key`, job_id, latest, changed_at)
select u.kind, u.`key`, u.job_id, u.job_id, :now
  from json_table(:batch, '$[*]' columns (
        kind longtext character set utf8mb4 path '$[0]', `key` longtext character set utf8mb4 path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]')) u
on duplicate key update
    latest = u.job_id,  -- when fresh
    changed_at = if(holdfast_debounces.changed_at < :now - interval 1 minute, :now, holdfast_debounces.changed_at);

-- debounce_find: read what debounce keys name whose rows are locked, with the place of each in the batch.
-- Differs: a locking read, as in unique_find.
select u.n, d.job_id, d.latest
  from json_table(:batch, '$[*]' columns (
        n for ordinality, kind varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_debounces d force index (primary) on d.kind = u.kind and d.`key` = u.`key`
   /*M! lock in share mode */ /*!80001 for share of d */;

-- debounce_update: give pending jobs that nobody has claimed a new payload, and put them off; answers with their ids.
-- One that is due keeps its place, or a stream of calls would send it behind the others again and again.
-- One with a key is left alone once it is due: it may stand in a line, whose claims would wait for the caller.
-- Differs: InnoDB locks a row before it knows whether that is meant, and the worker of a job that runs would wait for
-- the caller. So what was claimed as far as the caller can see is left alone; it can never be open again.
-- Differs: in a caller's REPEATABLE READ, to look with a lock for a job that is over would lock the gap where it stood,
-- which in a small table is all there is: every enqueue would wait for the caller, and two such callers would deadlock.
-- So what is not there is added first, with a fence that no job has, found with the others, and deleted again.
-- Its first column is for the statements behind it: + for an open job, - for any other, and the id.
select u.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
  left join holdfast_jobs j force index (primary) on j.id = u.id
 where j.id is null or (j.fence = 0 and j.state = 'pending' and (j.`key` is null or j.available_at > :now));
insert into holdfast_jobs (id, fence, state, queue, kind, payload, available_at, created_at, max_attempts)
select u.id, -1, 'waiting', '', '', '{}', :now, :now, 1
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
on duplicate key update id = holdfast_jobs.id;
select concat(if(j.fence = 0 and j.state = 'pending' and (j.`key` is null or j.available_at > :now), '+', '-'), j.id),
       if(j.fence = 0 and j.state = 'pending' and (j.`key` is null or j.available_at > :now), j.id, '')
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   for update /*!80001 of j */;
update json_table(:batch, '$[*]' columns (
        job_id char(36) character set ascii collate ascii_bin path '$[0]',
        payload longtext character set utf8mb4 path '$[1]', headers longtext character set utf8mb4 path '$[2]',
        wait_ms bigint path '$[3]', max_wait_ms bigint path '$[4]')) u
 straight_join json_table(:found, '$[*]' columns (
        mark char(37) character set ascii collate ascii_bin path '$')) f on f.mark = concat('+', u.job_id)
 straight_join holdfast_jobs j force index (primary) on j.id = u.job_id
   set j.payload = u.payload, j.headers = u.headers,
       j.available_at = case when j.available_at > :now
           then greatest(:now, least(:now + interval u.wait_ms * 1000 microsecond,
                                     j.created_at + interval u.max_wait_ms * 1000 microsecond))
           else j.available_at end;
delete j
  from json_table(:found, '$[*]' columns (mark char(37) character set ascii collate ascii_bin path '$')) f
 straight_join holdfast_jobs j force index (primary) on j.id = substring(f.mark, 2)
 where j.fence = -1 and j.followers is null;

-- debounce_point: let debounce keys name these jobs, and say which call did that.
update json_table(:batch, '$[*]' columns (
        kind varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]',
        job_id char(36) character set ascii collate ascii_bin path '$[2]',
        latest char(36) character set ascii collate ascii_bin path '$[3]')) u
 straight_join holdfast_debounces d force index (primary) on d.kind = u.kind and d.`key` = u.`key`
   set d.job_id = u.job_id, d.latest = u.latest;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- Differs: no LATERAL in MariaDB, and its recursive queries read whole levels: the hops from priority to priority are
-- statements of their own, one for each level that is needed.
-- The index gives the order of what is taken: with a sort InnoDB would lock every candidate, and the next worker would
-- get nothing. Without the hops MariaDB locks every job for later that it walks over (5,000 of them: 80 ms a claim).
-- The rows come in no order: sorting them with their payloads doubled the time of a claim.
-- A hop for each of 1,500 queues takes a second and more. Of many queues only those are looked at that have due jobs of
-- these kinds, as long as there are few jobs of these kinds at all, and their first and last levels are read at once.
-- Written with all columns of its index, that order is read from its end, one row each; with fewer MySQL sorts the
-- queue.
-- bind: hops
-- bind: lists kinds, leases, queues, lane_queues, lane_priorities, lane_belows, lane_aboves, lane_floors, lane_ceilings
select k.queue, count(*), sum(k.state = 'pending' and k.available_at <= :now)
  from (select queue, state, available_at from holdfast_jobs force index (holdfast_jobs_unique_idx)
         where true
           and kind in (:kinds)  -- when kinds
         limit 1000) k
 group by k.queue;
select e.queue, e.first, e.first_at, e.first_at <= :now, e.last
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
          from json_table(:many, '$[*]' columns (
                queue varchar(100) character set utf8mb4 collate holdfast_text path '$')) q) e
 where e.first is not null;
select urgency, available_at, available_at <= :now
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency > :urgency
   and urgency < :until  -- when lane_queues
 order by urgency, available_at
 limit 1;
select id
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency = :urgency
   and available_at <= :now
   and available_at between :floor and :ceiling  -- when lane_queues
   and kind in (:kinds)  -- when kinds
   and lapses = 0  -- when unsuspected
   -- when buckets:
   and (bucket is null or bucket in (:buckets) or available_at <= :now - interval :overdue_ms * 1000 microsecond)
   -- end
 order by available_at, id
 limit :limit
   for update skip locked;
select j.id, j.queue, j.kind, j.payload, j.headers, j.`key`, j.priority, least(j.attempts, 2147483646) + 1,
       j.max_attempts, least(j.fence, 9223372036854775806) + 1,
       coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms),
       j.available_at, j.created_at, j.cancel_requested, j.lapses
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.state = 'leased', j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = least(j.attempts, 2147483646) + 1, j.began = false, j.leased_by = :worker,
       j.leased_at = :now,
       j.lease_expires_at = :now + interval 1000 * coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms) microsecond;

-- renew: put the end of held leases off, note whose handler has begun, and tell who was asked to stop.
select j.id, j.cancel_requested
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        lease_ms integer path '$[2]', began integer path '$[3]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   set j.lease_expires_at = :now + interval u.lease_ms * 1000 microsecond,
       j.began = j.began or u.began;

-- begin: record that the handler of a leased job is about to be called.
select id from holdfast_jobs where id = :id and fence = :fence for update;
update holdfast_jobs set began = true where id = :id and fence = :fence;

-- expiry_look: read the time, and how often each of these jobs was replayed by hand: such a job is to run.
select j.id, j.replays, :now
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- put_back: return leased jobs to their queue.
-- To retry them (delay, error), to snooze (delay, attempt back) or to release them (attempt back).
-- Or to park them (what they wait for, attempt back): with a delay they are due by then at the latest, without one they
-- wait.
-- The fence rises here too, so that the holder of the lease can no longer write.
-- Differs: errors are a JSON array as text; what is added goes before its last bracket. Whatever else is there becomes
-- its first item.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
   for update /*!80001 of j */;
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        delay_ms bigint path '$[2]', attempts_back integer path '$[3]',
        error longtext character set utf8mb4 path '$[4]', lapses integer path '$[5]',
        waits_for varchar(200) character set utf8mb4 path '$[6]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
   set j.state = case when u.delay_ms is null and u.waits_for is not null and not j.cancel_requested
           then 'waiting' else 'pending' end,
       j.waits_for = u.waits_for,
       j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = greatest(j.attempts, 1) - u.attempts_back, j.lapses = coalesce(u.lapses, j.lapses),
       j.available_at = coalesce(:now + interval u.delay_ms * 1000 microsecond, j.available_at),
       j.leased_by = null, j.leased_at = null, j.lease_expires_at = null,
       j.errors = case when u.error is null then j.errors
                       when j.errors is null then concat('[', u.error, ']')
                       when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
                       when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
                       when json_length(j.errors) = 0 then concat('[', u.error, ']')
                       else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end;

-- wake: make jobs due that wait for something.
-- A leased job may still say what it waited for before: it waits for nothing now.
-- Differs: a column that was set has its new value in the terms behind it, so the state comes last.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state <> 'leased' and j.waits_for is not null
   and j.waits_for = :waits_for  -- when waits_for
   for update /*!80001 of j */;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.available_at = case when j.state = 'waiting' then :now else least(j.available_at, :now) end,
       j.state = 'pending', j.waits_for = null;

-- finish: move leased jobs to the finished table with their outcome.
-- Jobs with followers are left alone where `unfollowed` is given: their end has consequences, see `followed`. Where
-- `bits` are given, so are all whose followers are not just these.
-- Differs: no writing CTE, so copy and delete are statements of one transaction.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
   for update /*!80001 of j */;
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, `key`, unique_key, leased_by, fingerprint, payload, headers, progress, result,
     errors, followers)
select j.id, j.fence, j.available_at, j.created_at, j.leased_at, :now, j.attempts,
       j.max_attempts, j.lease_ms, j.replays, j.priority, j.bucket, u.outcome, j.queue, j.kind, j.`key`, j.unique_key,
       j.leased_by, u.fingerprint, j.payload, j.headers, j.progress, u.result,
       case when u.error is null then j.errors
            when j.errors is null then concat('[', u.error, ']')
            when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
            when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
            when json_length(j.errors) = 0 then concat('[', u.error, ']')
            else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end,
       j.followers
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        outcome varchar(10) path '$[2]', result longtext character set utf8mb4 path '$[3]',
        error longtext character set utf8mb4 path '$[4]', fingerprint varchar(64) character set utf8mb4 path '$[5]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
;
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- drop: delete leased jobs that leave no finished row (retention 0), and note their ids for repeated enqueues.
select j.id
  from json_table(:held, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
   for update /*!80001 of j */;
insert into holdfast_dropped (at, ids) values (:now, :found);
delete j
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- finish_one: move a leased job to the finished table as done, and answer with its id.
-- Differs: no writing CTE, so copy and delete are statements of one transaction. The copy locks the row that it reads,
-- and how many it wrote answers for it: a message less than to read first.
-- bind: counted
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, `key`, unique_key, leased_by, payload, headers, progress, result, errors)
select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts, lease_ms, replays, priority,
       bucket, 'done', queue, kind, `key`, unique_key, leased_by, payload, headers, progress, :result, errors
  from holdfast_jobs
 where id = :id and fence = :fence and followers is null
   for update;
delete from holdfast_jobs where id = :id;

-- drop_one: delete a leased job that leaves no finished row (retention 0), note its id, and answer with it.
-- Differs: no writing CTE.
-- bind: counted
delete from holdfast_jobs where id = :id and fence = :fence and followers is null;
insert into holdfast_dropped (at, ids) values (:now, json_array(:id));

-- followed: lock live jobs whose end has consequences, in the order of ids, and read what those ask for.
-- Differs: the list is sorted already, and its order is that of the locks.
select j.id, j.fence, j.queue, j.kind, j.`key`, j.followers
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.followers is not null
   for update /*!80001 of j */;

-- jobs_lock: lock live jobs in the order of ids, and read what their ends may ask for.
-- Differs: the list is sorted already, and its order is that of the locks.
select j.id, j.fence, j.queue, j.kind, j.`key`, coalesce(j.followers, 0)
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   for update /*!80001 of j */;

-- follow: say of live jobs that their end has one more consequence.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   for update /*!80001 of j */;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) | :bit;

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
select id, queue, kind, fence, attempts, max_attempts, leased_by, leased_at, lease_expires_at, cancel_requested, began,
       lapses, followers
  from holdfast_jobs force index (holdfast_jobs_lease_idx)
 where state = 'leased' and lease_expires_at < :now
   and lease_expires_at >= :now - interval :look_back_ms * 1000 microsecond  -- when look_back_ms
   and kind in (:kinds)  -- when kinds
   and id not in (
       select u.id
         from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)
   and (followers is null or followers | :known = :known)
 order by lease_expires_at
 limit :limit
   for update skip locked  -- when lock
;

-- reap_behind: read and lock leases that stand behind others of their stint; the columns of reap_pick.
select j.id, j.queue, j.kind, j.fence, j.attempts, j.max_attempts, j.leased_by, j.leased_at, j.lease_expires_at,
       j.cancel_requested, j.began, j.lapses, j.followers
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.followers | :known = :known
   for update /*!80001 of j */ skip locked;

-- reap_mark: raise the fence of leases that were picked.
-- So a late holder's write cannot be taken for the reaper's.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.fence = least(j.fence, 9223372036854775806) + 1;

-- strays: read the leases that the table says a worker holds, except those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker
   and id not in (
       select u.id
         from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u)
   and (followers is null or followers | :known = :known);

-- stuck: read rows, written by hand, that no claim and no reaper can ever take, and why.
-- Differs: the table has no rule on states, so a state may be anything.
select id, why
  from (select id, 'a lease without an end: lease_expires_at' as why
          from holdfast_jobs force index (holdfast_jobs_lease_idx)
         where state = 'leased' and lease_expires_at is null
         union all
        select id, 'it waits for nothing: waits_for' from holdfast_jobs where state = 'waiting' and waits_for is null
         union all
        select id, 'an unknown state' from holdfast_jobs where state not in ('pending', 'leased', 'waiting')) s
 limit :limit;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
-- Differs: the optimizer does the hopping (a loose index scan).
select outcome, queue from holdfast_finished group by outcome, queue;

-- prune: delete a chunk of finished rows older than their retention.
-- Runs are left out: they go with their journals, see `runs_old`.
select id from holdfast_finished force index (holdfast_finished_age_idx)
 where outcome = :outcome and queue = :queue
   and finished_at < :now - interval :older_ms * 1000 microsecond
   and (followers is null or followers & 128 = 0)
 order by finished_at
 limit :limit
   for update skip locked;
delete f
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- dropped_add: note the ids of jobs whose finished rows are gone.
insert into holdfast_dropped (at, ids) values (:now, :ids);

-- dropped_prune: delete a chunk of notes that no repeat can ask for any more.
select id from holdfast_dropped force index (holdfast_dropped_at_idx)
 where at < :now - interval :older_ms * 1000 microsecond
 order by at
 limit :limit
   for update skip locked;
delete d
  from json_table(:found, '$[*]' columns (id bigint path '$')) u
 straight_join holdfast_dropped d force index (primary) on d.id = u.id;

-- keys_prune: delete a chunk of idempotency keys past their window.
-- Differs: :found is one column, so the two of the primary key are put into one JSON text.
select json_array(scope, `key`) from holdfast_keys force index (holdfast_keys_expiry_idx)
 where expires_at <= :now
 order by expires_at
 limit :limit
   for update skip locked;
delete k
  from json_table(:found, '$[*]' columns (pair longtext character set utf8mb4 path '$')) p
 straight_join json_table(p.pair, '$' columns (
        scope varchar(120) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_keys k force index (primary) on k.scope = u.scope and k.`key` = u.`key`;

-- debounces_prune: delete a chunk of debounce keys whose job takes no more calls, once no call of theirs is repeated.
-- Differs: as keys_prune.
select json_array(d.kind, d.`key`) from holdfast_debounces d force index (holdfast_debounces_age_idx)
 where d.changed_at < :now - interval :older_ms * 1000 microsecond
   and not exists (select 1 from holdfast_jobs j where j.id = d.job_id and j.fence = 0)
 order by d.changed_at
 limit :limit
   for update skip locked;
delete d
  from json_table(:found, '$[*]' columns (pair longtext character set utf8mb4 path '$')) p
 straight_join json_table(p.pair, '$' columns (
        kind varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_debounces d force index (primary) on d.kind = u.kind and d.`key` = u.`key`;

-- pauses_list: read which queues and kinds are paused, queues first.
select scope, name, since, paused_by, reason from holdfast_pauses
 order by scope desc, name;

-- said_look: read in one answer what is paused, and what is stored of queues; the columns of `queue_settings`.
-- Differs: drivers read a time at no cost to speak of, and NULL needs no type.
select scope, name, since, paused_by, reason, null, null, null from holdfast_pauses
 union all
select 'stored', name, changed_at, changed_by, null, settings, version, held from holdfast_queues;

-- position_read: read how far a stream has been received.
select value from holdfast_meta where `key` = :name;

-- position_write: note how far a stream has been received; what others have noted beyond that stays.
insert into holdfast_meta (`key`, value) values (:name, :position)
on duplicate key update value = greatest(holdfast_meta.value, :position);

-- live_buckets: tell which of these buckets have live jobs.
select distinct bucket from holdfast_jobs
 where bucket in (:buckets)
   and not queue in (:apart);

-- live_queues: tell which of these queues have live jobs.
select distinct queue from holdfast_jobs where queue in (:queues);
