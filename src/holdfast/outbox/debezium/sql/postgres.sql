-- The table that Debezium's outbox event router reads, on PostgreSQL. The MySQL file holds the same names in the same
-- order. Rows are inserted and deleted, never updated: the router refuses updates and ignores deletes.

-- create: make the table; one creator at a time. The id stays its first column, `untaken` reads it by its place.
select pg_advisory_xact_lock(hashtextextended('foreign_events', 0));
create table if not exists foreign_events (
    id uuid primary key,
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload json not null,
    source text not null,
    specversion text not null,
    datacontenttype text not null,
    time text not null,
    subject text,
    dataschema text,
    dataversion text,
    partitionkey text,
    traceparent text,
    tracestate text,
    tracingspancontext text,
    headers json,
    created_at timestamptz not null default clock_timestamp()
);

-- present: tell whether the table is there.
select 1 where to_regclass(quote_ident(cast(:table as text))) is not null;

-- write: add events. One that is there already stays as it is: its first try was committed.
insert into foreign_events
    (id, aggregatetype, aggregateid, type, payload, source, specversion, datacontenttype, time, subject, dataschema,
     dataversion, partitionkey, traceparent, tracestate, tracingspancontext, headers)
select u.id, u.aggregatetype, u.aggregateid, u.type, u.payload::json, u.source, u.specversion, u.datacontenttype,
       u.time, u.subject, u.dataschema, u.dataversion, u.partitionkey, u.traceparent, u.tracestate,
       u.tracingspancontext, u.headers::json
  from unnest(:id::text::uuid[], :aggregatetype::text[], :aggregateid::text[], :type::text[], :payload::text[],
              :source::text[], :specversion::text[], :datacontenttype::text[], :time::text[], :subject::text[],
              :dataschema::text[], :dataversion::text[], :partitionkey::text[], :traceparent::text[],
              :tracestate::text[], :tracingspancontext::text[], :headers::text[])
       as u (id, aggregatetype, aggregateid, type, payload, source, specversion, datacontenttype, time, subject,
             dataschema, dataversion, partitionkey, traceparent, tracestate, tracingspancontext, headers)
on conflict (id) do nothing;

-- pick: lock events in the order in which they were published, those that another takes left out.
select e.id::text, e.type, e.payload::text, e.source, e.time, e.subject, e.dataschema, e.dataversion, e.partitionkey,
       e.traceparent, e.tracestate, e.headers::text
  from foreign_events e
 where true
   and e.id = any((select :ids::text::uuid[])::uuid[])  -- when ids
   and e.id > :after::text::uuid  -- when after
   and e.created_at >= :since::text::timestamptz  -- when since
   and e.created_at < :until::text::timestamptz  -- when until
 order by e.id
 limit :limit
   for update skip locked;

-- remove: delete events that were handed over.
delete from foreign_events e where e.id = any((select :ids::text::uuid[])::uuid[]);

-- count: count events.
select count(*) from foreign_events e
 where true
   and e.id = any((select :ids::text::uuid[])::uuid[])  -- when ids
   and e.created_at >= :since::text::timestamptz  -- when since
   and e.created_at < :until::text::timestamptz  -- when until
   and e.created_at < :now - :older_ms::bigint * interval '1 millisecond'  -- when older_ms
;

-- prune: delete a chunk of events that were written long ago.
delete from foreign_events
 where ctid = any (array(
    select ctid from foreign_events
     where created_at < :now - :older_ms::bigint * interval '1 millisecond'
     order by id
     limit :limit
       for update skip locked))
returning 1;

-- slot: read what is known of a replication slot: its plugin, and whether somebody reads from it now.
select s.plugin, s.active from pg_replication_slots s where s.slot_name = :slot and s.database = current_database();

-- untaken: list the events that were committed and that the reader of a slot has not confirmed.
-- A message of pgoutput for an insert: I, the table's oid (4 bytes), N, the number of columns (2), then t and the
-- length of the first column's text (5), and that text, which is the id.
select convert_from(substring(p.data from 14 for 36), 'UTF8')
  from pg_logical_slot_peek_binary_changes(cast(:slot as text)::name, null, null, 'proto_version', '1',
                                           'publication_names', cast(:publication as text)) p
 where get_byte(p.data, 0) = 73
   and (get_byte(p.data, 1)::bigint << 24) + (get_byte(p.data, 2) << 16) + (get_byte(p.data, 3) << 8)
       + get_byte(p.data, 4) = to_regclass(quote_ident('foreign_events'))::oid::bigint;
