-- The table that Debezium's outbox event router reads, on MySQL and MariaDB.
-- The PostgreSQL file holds the same names in the same order.
-- Rows are inserted and deleted, never updated: the router refuses updates and ignores deletes.

-- create: make the table.
-- Differs: CREATE … IF NOT EXISTS does not race here. Texts that hold JSON keep it as it was written.
create table if not exists foreign_events (
    id char(36) character set ascii collate ascii_bin not null primary key,
    aggregatetype varchar(255) not null,
    aggregateid text not null,
    type varchar(255) not null,
    payload longtext not null,
    source text not null,
    specversion varchar(8) not null,
    datacontenttype varchar(255) not null,
    time varchar(40) not null,
    subject text,
    dataschema text,
    dataversion varchar(16),
    partitionkey varchar(255),
    traceparent text,
    tracestate text,
    tracingspancontext text,
    headers longtext,
    created_at datetime(6) not null
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- present: tell whether the table is there.
select 1 from information_schema.tables where table_schema = database() and table_name = :table;

-- write: add events. One that is there already stays as it is: its first try was committed.
-- Differs: setting the id to what it is changes nothing, so that the log has no update of the row.
insert into foreign_events
    (id, aggregatetype, aggregateid, type, payload, source, specversion, datacontenttype, time, subject, dataschema,
     dataversion, partitionkey, traceparent, tracestate, tracingspancontext, headers, created_at)
select u.id, u.aggregatetype, u.aggregateid, u.type, u.payload, u.source, u.specversion, u.datacontenttype, u.time,
       u.subject, u.dataschema, u.dataversion, u.partitionkey, u.traceparent, u.tracestate, u.tracingspancontext,
       u.headers, :now
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        aggregatetype longtext character set utf8mb4 path '$[1]',
        aggregateid longtext character set utf8mb4 path '$[2]',
        type longtext character set utf8mb4 path '$[3]', payload longtext character set utf8mb4 path '$[4]',
        source longtext character set utf8mb4 path '$[5]', specversion longtext character set utf8mb4 path '$[6]',
        datacontenttype longtext character set utf8mb4 path '$[7]', time longtext character set utf8mb4 path '$[8]',
        subject longtext character set utf8mb4 path '$[9]', dataschema longtext character set utf8mb4 path '$[10]',
        dataversion longtext character set utf8mb4 path '$[11]',
        partitionkey longtext character set utf8mb4 path '$[12]',
        traceparent longtext character set utf8mb4 path '$[13]', tracestate longtext character set utf8mb4 path '$[14]',
        tracingspancontext longtext character set utf8mb4 path '$[15]',
        headers longtext character set utf8mb4 path '$[16]')) u
on duplicate key update id = foreign_events.id;

-- pick: lock events in the order in which they were published, those that another takes left out.
select e.id, e.type, e.payload, e.source, e.time, e.subject, e.dataschema, e.dataversion, e.partitionkey,
       e.traceparent, e.tracestate, e.headers
  from foreign_events e
 where true
   and e.id in (:ids)  -- when ids
   and e.id > :after  -- when after
   and e.created_at >= :since  -- when since
   and e.created_at < :until  -- when until
 order by e.id
 limit :limit
   for update skip locked;

-- remove: delete events that were handed over.
delete from foreign_events where id in (:ids);

-- count: count events.
select count(*) from foreign_events e
 where true
   and e.id in (:ids)  -- when ids
   and e.created_at >= :since  -- when since
   and e.created_at < :until  -- when until
   and e.created_at < :now - interval :older_ms * 1000 microsecond  -- when older_ms
;

-- prune: delete a chunk of events that were written long ago.
select id from foreign_events
 where created_at < :now - interval :older_ms * 1000 microsecond
 order by id
 limit :limit
   for update skip locked;
delete e
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join foreign_events e force index (primary) on e.id = u.id;

-- slot: find nothing. Differs: there are no replication slots.
select 1 from dual where :slot is null;

-- untaken: find nothing. Differs: there are no replication slots.
select 1 from dual where :slot is null and :publication is null;
