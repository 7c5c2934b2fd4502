-- The PHP queue tables on MySQL and MariaDB. The SQLite file holds the same names in the same order.
-- Times are text of whole seconds in the time zone of the PHP processes: the flows write them.

-- create: make both tables, as the PHP transport makes them.
create table if not exists foreign_jobs (
    id bigint unsigned not null auto_increment primary key,
    queue varchar(255) not null,
    urn varchar(255) not null,
    trace_id varchar(64) null,
    attempts int not null default 0,
    payload text not null,
    available_at datetime not null,
    reserved_at datetime null,
    created_at datetime not null,
    key foreign_jobs_reserve_idx (queue, available_at, reserved_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_unicode_ci;
create table if not exists foreign_failed (
    id bigint unsigned not null auto_increment primary key,
    queue varchar(255) not null,
    urn varchar(255) not null,
    trace_id varchar(64) null,
    attempts int not null default 0,
    payload text not null,
    reason varchar(64) not null,
    failed_at datetime not null,
    created_at datetime not null
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_unicode_ci;

-- publish: add a row and read its id.
insert into foreign_jobs (queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at)
values (:queue, :urn, :trace_id, :attempts, :payload, :available_at, null, :created_at);
select last_insert_id();

-- pick: look for ready rows of a queue, oldest first, without a lock.
-- Locking here would need the order from an index: with a sort InnoDB locks every candidate.
select id, urn
  from foreign_jobs
 where queue = :queue and id > :after and available_at <= :at and (reserved_at is null or reserved_at <= :stale)
 order by id
 limit :limit;

-- lock: lock a row that is still ready. A peer that claims it optimistically waits, and then finds it taken.
select id, queue, urn, trace_id, attempts, payload, cast(available_at as char), cast(reserved_at as char),
       cast(created_at as char)
  from foreign_jobs
 where id = :id and available_at <= :at and (reserved_at is null or reserved_at <= :stale)
   for update skip locked;

-- stamp: write a reservation, or write it again.
update foreign_jobs set reserved_at = :at where id = :id;

-- recount: write a reservation and the attempts of a message that somebody had reserved before.
update foreign_jobs set reserved_at = :at, attempts = :attempts, payload = :payload where id = :id;

-- held: lock a row, for a holder to see whether the reservation is still its own.
select id, queue, urn, trace_id, attempts, payload, cast(available_at as char), cast(reserved_at as char),
       cast(created_at as char)
  from foreign_jobs
 where id = :id
   for update;

-- ack: delete a row.
delete from foreign_jobs where id = :id;

-- release: make a row ready again, now or later.
update foreign_jobs
   set payload = :payload, attempts = :attempts, available_at = :available_at, reserved_at = null
 where id = :id;

-- fail: copy a message to the failed table; the flow deletes the row in the same transaction.
insert into foreign_failed (queue, urn, trace_id, attempts, payload, reason, failed_at, created_at)
values (:queue, :urn, :trace_id, :attempts, :payload, :reason, :failed_at, :created_at);

-- failed: read failed rows by id; a line marked `when` is there only if its parameter is given.
select id, queue, urn, trace_id, attempts, payload, reason, cast(failed_at as char), cast(created_at as char)
  from foreign_failed
 where 1 = 1
   and queue = :queue  -- when queue
   and urn = :kind  -- when kind
   and id in (:row_ids)  -- when row_ids
   and failed_at >= :finished_after  -- when finished_after
   and failed_at < :finished_before  -- when finished_before
   and id > :newer_than  -- when newer_than
   and id < :older_than  -- when older_than
   and id >= :from_id  -- when from_id
   and id <= :to_id  -- when to_id
 order by
       id desc,  -- when newest
       id
 limit :limit;

-- failed_horizon: name the failed row that is the last of this many, and the one behind it, if there is one.
select id
  from foreign_failed
 where 1 = 1
   and id > :newer_than  -- when newer_than
   and id < :older_than  -- when older_than
 order by
       id desc,  -- when newest
       id
 limit 2 offset :skipped;

-- failed_lock: lock one failed row.
select id, queue, urn, trace_id, attempts, payload, reason, cast(failed_at as char), cast(created_at as char)
  from foreign_failed
 where id = :id
   for update;

-- failed_delete: delete one failed row.
delete from foreign_failed where id = :id;

-- prune: read a chunk of failed rows older than a moment; the flow deletes them by primary key.
select id from foreign_failed
 where failed_at < :before
   and queue = :queue  -- when queue
 order by id
 limit :limit;

-- counts: count rows by queue: ready, waiting, reserved, stale, and when the oldest ready one became so.
select queue,
       cast(sum(case when reserved_at is null and available_at <= :at then 1 else 0 end) as signed),
       cast(sum(case when reserved_at is null and available_at > :at then 1 else 0 end) as signed),
       cast(sum(case when reserved_at > :stale then 1 else 0 end) as signed),
       cast(sum(case when reserved_at <= :stale then 1 else 0 end) as signed),
       cast(min(case when reserved_at is null and available_at <= :at then available_at end) as char)
  from foreign_jobs
 group by queue
 order by queue;

-- failed_counts: count failed rows by queue.
select queue, count(*) from foreign_failed
 where 1 = 1
   and queue = :queue  -- when queue
   and urn = :kind  -- when kind
   and id in (:row_ids)  -- when row_ids
   and failed_at >= :finished_after  -- when finished_after
   and failed_at < :finished_before  -- when finished_before
 group by queue
 order by queue;

-- rows: read rows by id; a line marked `when` is there only if its parameter is given.
select id, queue, urn, trace_id, attempts, payload, cast(available_at as char), cast(reserved_at as char),
       cast(created_at as char)
  from foreign_jobs
 where 1 = 1
   and reserved_at is null  -- when pending
   and reserved_at is not null  -- when leased
   and queue = :queue  -- when queue
   and urn = :kind  -- when kind
   and id in (:row_ids)  -- when row_ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and id > :newer_than  -- when newer_than
   and id < :older_than  -- when older_than
 order by
       id desc,  -- when newest
       id
 limit :limit;

-- due: make a row ready that waits and that nobody has reserved.
update foreign_jobs set available_at = :at where id = :id and reserved_at is null;

-- present: tell whether a table is there.
select 1 from information_schema.tables where table_schema = database() and table_name = :table;
